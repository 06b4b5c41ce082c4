#include "runtime/jsonl.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/file_size_limit.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using namespace difuse::test;
using nlohmann::ordered_json;

TEST(JsonlLog, WritesOneLineAtATime) {
  const TempFolder folder;
  write_file(folder / "log.jsonl", "old\n");
  JsonlLog log = JsonlLog::create(folder / "log.jsonl");
  EXPECT_EQ(read_file(folder / "log.jsonl"), "");
  log.append({{"step", 1}, {"loss", 0.5}});
  EXPECT_EQ(read_file(folder / "log.jsonl"), "{\"step\":1,\"loss\":0.5}\n");
  log.append({{"step", 2}, {"loss", std::numeric_limits<double>::quiet_NaN()}, {"note", "a\nb"}});
  EXPECT_EQ(read_file(folder / "log.jsonl"),
            "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":null,\"note\":\"a\\nb\"}\n");
}

TEST(JsonlLog, ResumeDropsLaterStepsAndACutOffLine) {
  const TempFolder folder;
  write_file(folder / "log", "{\"run\": \"a\"}\n{\"step\": 10}\n{\"step\": 20}\n{\"step\": 30}\n{\"step\": 4");
  {
    JsonlLog log = JsonlLog::resume(folder / "log", 20);
    EXPECT_EQ(read_file(folder / "log"), "{\"run\": \"a\"}\n{\"step\": 10}\n{\"step\": 20}\n");
    log.append({{"step", 21}});
  }
  EXPECT_EQ(read_file(folder / "log"), "{\"run\": \"a\"}\n{\"step\": 10}\n{\"step\": 20}\n{\"step\":21}\n");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(JsonlLog, ResumeDropsWhatAPowerCutDamaged) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "metrics.jsonl";
  write_file(path, "{\"step\":1}\n" + std::string(40, '\0') + "\n{\"step\":2}\n");
  JsonlLog::resume(path, 5);
  EXPECT_EQ(read_file(path), "{\"step\":1}\n");
}

TEST(JsonlLog, DoesNotWaitForAPipe) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "metrics.jsonl";
  ASSERT_EQ(::mkfifo(path.c_str(), 0666), 0);
  EXPECT_CONTAINS(error_of([&] { JsonlLog::create(path); }), "it is a pipe");
}

TEST(JsonlLog, ResumeWithoutALogStartsOne) {
  const TempFolder folder;
  JsonlLog log = JsonlLog::resume(folder / "log", 20);
  log.append({{"step", 21}});
  EXPECT_EQ(read_file(folder / "log"), "{\"step\":21}\n");
}

TEST(JsonlLog, ResumeLeavesForeignFilesAlone) {
  const TempFolder folder;
  write_file(folder / "log", "{\"step\": 1}\nmy notes\n");
  EXPECT_CONTAINS(error_of([&] { JsonlLog::resume(folder / "log", 0); }), "line 2 of '");
  EXPECT_EQ(read_file(folder / "log"), "{\"step\": 1}\nmy notes\n");
}

TEST(JsonlLog, NamesTheFileThatCannotBeWritten) {
  const TempFolder folder;
  EXPECT_CONTAINS(error_of([&] { JsonlLog::create(folder / "no/log"); }), "no' does not exist");
  EXPECT_CONTAINS(error_of([&] { JsonlLog::create(folder.path()); }), "it is a folder");
  EXPECT_CONTAINS(error_of([&] { JsonlLog::resume(folder.path(), 1); }), "is a folder");
  JsonlLog full = JsonlLog::create("/dev/full");
  EXPECT_CONTAINS(error_of([&] { full.append({{"step", 1}}); }), "cannot write '/dev/full': the disk is full");
}

TEST(JsonlLog, FullDiskLeavesNoHalfLine) {
  const TempFolder folder;
  JsonlLog log = JsonlLog::create(folder / "log");
  log.append({{"step", 1}});
  std::string error;
  {
    const FileSizeLimit limit(20);
    error = error_of([&] { log.append({{"step", 2}, {"text", "longer than the limit"}}); });
  }
  EXPECT_CONTAINS(error, "log': the file would be larger");
  EXPECT_EQ(read_file(folder / "log"), "{\"step\":1}\n");
}

}  // namespace
}  // namespace difuse::runtime
