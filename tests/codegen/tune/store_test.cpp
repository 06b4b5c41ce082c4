// The user's own decisions: kept, damaged, written by many.
#include "codegen/tune/store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/temp_folder.h"

namespace difuse::codegen {
namespace {

using test::TempFolder;

const TunedDevice kDevice{"Fake GPU", 100, "13.0"};

struct Log {
  std::vector<std::string> lines;
  TuningStore::Warn warn() {
    return [this](const std::string& line) { lines.push_back(line); };
  }
};

TuningTable table_of(const std::string& problem, const std::string& tile = "a tile") {
  TuningTable table;
  table.set(problem, 8, {tile, 2, 3});
  return table;
}

TEST(TuningStore, KeepsAndAdds) {
  const TempFolder folder;
  const TuningStore store(folder / "tuning", kDevice);
  EXPECT_TRUE(store.load().empty());
  EXPECT_FALSE(std::filesystem::exists(folder / "tuning")) << "nothing is made before there is something to keep";
  EXPECT_TRUE(store.add(table_of("a")));
  EXPECT_TRUE(store.add(table_of("b")));
  EXPECT_TRUE(store.add(table_of("a", "another")));
  TuningTable want = table_of("a", "another");
  want.merge(table_of("b"));
  EXPECT_EQ(TuningStore(folder / "tuning", kDevice).load(), want);
  EXPECT_EQ(store.path().filename(), "fake-gpu-100-13.0.json");
}

TEST(TuningStore, TellsCardsAndDriversApart) {
  const TempFolder folder;
  const TuningStore store(folder.path(), kDevice);
  store.add(table_of("a"));
  for (const TunedDevice& other : {TunedDevice{"Fake GPU 2", 100, "13.0"}, TunedDevice{"Fake GPU", 99, "13.0"},
                                   TunedDevice{"Fake GPU", 100, "12.8"}}) {
    EXPECT_TRUE(TuningStore(folder.path(), other).load().empty());
  }
}

TEST(TuningStore, BeginsADamagedFileAgainAfterOneLine) {
  const TempFolder folder;
  Log log;
  const TuningStore store(folder.path(), kDevice, log.warn());
  store.add(table_of("a"));
  const std::string whole = test::read_file(store.path());
  for (const std::string& damaged : {whole.substr(0, whole.size() - 20), std::string("\0\1", 2), std::string(),
                                     print({{"Another GPU", 1, "1"}, {}})}) {
    log.lines.clear();
    test::write_file(store.path(), damaged);
    EXPECT_TRUE(store.load().empty());
    ASSERT_EQ(log.lines.size(), 1u);
    EXPECT_CONTAINS(log.lines[0], store.path().string());
    EXPECT_CONTAINS(log.lines[0], "begun again");
    EXPECT_TRUE(store.add(table_of("b")));
    EXPECT_EQ(store.load(), table_of("b"));
  }
}

TEST(TuningStore, SaysOnceThatNothingCanBeKept) {
  const TempFolder folder;
  Log log;
  test::write_file(folder / "file", "");
  EXPECT_FALSE(TuningStore(folder / "file" / "tuning", kDevice, log.warn()).add(table_of("a")));
  ASSERT_EQ(log.lines.size(), 1u);
  EXPECT_CONTAINS(log.lines[0], "DIFUSE_CACHE");
  EXPECT_FALSE(TuningStore({}, kDevice, log.warn()).add(table_of("a")));
  ASSERT_EQ(log.lines.size(), 2u);
  EXPECT_TRUE(TuningStore({}, kDevice).load().empty());
}

TEST(TuningStore, LosesNothingWhenManyProcessesWriteAtOnce) {
  constexpr int kProcesses = 6, kEach = 8;
  const TempFolder folder;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int damaged = 0;
      const TuningStore store(folder.path(), kDevice, [&](const std::string&) { ++damaged; });
      for (int i = 0; i < kEach; ++i) {
        store.add(table_of(std::to_string(p) + "." + std::to_string(i)));
        static_cast<void>(store.load());  // Whole at any moment.
      }
      ::_exit(damaged);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(TuningStore(folder.path(), kDevice).load().decisions().size(), size_t{kProcesses * kEach});
  EXPECT_EQ(folder.entries(), 2u) << "the decisions and the lock";
}

TEST(TuningStore, LiesInTheCacheFolder) {
  ir::Options options;
  EXPECT_TRUE(tuning_folder(options).empty());
  options.user_cache = "/u";
  EXPECT_EQ(tuning_folder(options), "/u/difuse/tuning");
  options.cache = "/c";
  EXPECT_EQ(tuning_folder(options), "/c/tuning");
}

}  // namespace
}  // namespace difuse::codegen
