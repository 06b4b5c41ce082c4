#include "runtime/atomic_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/file_size_limit.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using namespace difuse::test;

TEST(AtomicFile, WritesBehindALinkAndKeepsIt) {
  const TempFolder folder;
  write_file(folder / "real", "old");
  std::filesystem::create_symlink("real", folder / "link");
  AtomicFile file(folder / "link");
  file.write("new");
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "real"), "new");
}

TEST(AtomicFile, TakesItsNameOnCommit) {
  const TempFolder folder;
  write_file(folder / "a", "old");
  AtomicFile file(folder / "a");
  file.write("ne");
  file.write("w!");
  EXPECT_EQ(read_file(folder / "a"), "old");
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "new!");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFile, LeavesTheOldFileWithoutCommit) {
  const TempFolder folder;
  write_file(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("new");
    EXPECT_EQ(folder.entries(), 2u);
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFile, ReservedSpaceDoesNotPadTheFile) {
  const TempFolder folder;
  AtomicFile file(folder / "a", 1 << 20);
  file.write("short");
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "short");
}

TEST(AtomicFile, ReplacesTheLeftoverOfAKilledProcessWithItsId) {
  const TempFolder folder;
  write_file(folder / ("a.tmp." + std::to_string(::getpid())), "left over, and longer than the new contents");
  AtomicFile file(folder / "a");
  file.write("new");
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "new");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFile, FullDiskKeepsTheOldFile) {
  const TempFolder folder;
  write_file(folder / "a", "old");
  std::string reserving;
  std::string writing;
  {
    const FileSizeLimit limit(4096);
    reserving = error_of([&] { AtomicFile file(folder / "a", 5000); });
    writing = error_of([&] {
      AtomicFile file(folder / "a");
      file.write(std::string(5000, 'x'));
      file.commit();
    });
  }
  for (const std::string& error : {reserving, writing}) {
    EXPECT_CONTAINS(error, (folder / "a").string());
    EXPECT_CONTAINS(error, "the file that was there before is unchanged");
    EXPECT_CONTAINS(error, "choose a path on another disk");
  }
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicFile, NamesWhyAPathCannotBeWritten) {
  const TempFolder folder;
  write_file(folder / "file", "");
  const auto open = [&](const std::filesystem::path& path) { return error_of([&] { require_writable(path, 1); }); };
  EXPECT_CONTAINS(open(folder / "missing/a"), "missing' does not exist");
  EXPECT_CONTAINS(open(folder / "file/a"), "is a file, not a folder");
  EXPECT_CONTAINS(open(folder.path()), "it is a folder, not a file");
  EXPECT_CONTAINS(open("/dev/null"), "it is a device or a pipe");
  EXPECT_CONTAINS(open(""), "without a name");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_EQ(open(folder / "fine"), "");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(WriteError, SaysThatTheDiskIsFull) {
  const Error error = write_error("out/model.safetensors", ENOSPC);
  EXPECT_STREQ(error.what(), "cannot write 'out/model.safetensors': the disk is full");
  EXPECT_EQ(error.exit_code(), ExitCode::failed);
}

}  // namespace
}  // namespace difuse::runtime
