#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace llmc {

/// Reads a file with every byte accounted for. All errors are of kind io or input and name the
/// path, the offset and what was expected. Positions are 64-bit. Safe to move, not to share.
class FileReader {
 public:
  explicit FileReader(std::filesystem::path path);
  ~FileReader();
  FileReader(FileReader&&) noexcept;
  FileReader& operator=(FileReader&&) noexcept;

  const std::filesystem::path& path() const;
  std::uint64_t size() const;
  std::uint64_t position() const;
  void seek(std::uint64_t position);

  /// Reads exactly `bytes` bytes at the position; a shorter file is an input error.
  void read(void* out, std::size_t bytes);
  /// Reads at most `bytes` bytes; 0 at the end of the file.
  std::size_t read_some(void* out, std::size_t bytes);
  template <class T>
  T read_value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    read(&value, sizeof value);
    return value;
  }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes a file that appears whole or not at all: bytes go to a temporary name in the same folder;
/// `commit` syncs them, renames the file into place and syncs the folder. A writer destroyed
/// without commit removes the temporary file. A full disk is an io error that states what was
/// written.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(FileWriter&&) noexcept;
  FileWriter& operator=(FileWriter&&) noexcept;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  template <class T>
  requires(std::is_trivially_copyable_v<T> &&
           !std::is_convertible_v<T, std::string_view>) void write_value(const T& value) {
    write(&value, sizeof value);
  }
  /// Moves the write position, to fill in a header whose counts are known last.
  void seek(std::uint64_t position);
  std::uint64_t position() const;
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A log that grows by lines; each `append` reaches the operating system before it returns.
class AppendFile {
 public:
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(AppendFile&&) noexcept;
  AppendFile& operator=(AppendFile&&) noexcept;

  void append(std::string_view text);
  /// Appends as much as it can and returns how many bytes that is; `error` says why not all.
  std::size_t append_part(std::string_view text, std::string& error);

 private:
  int fd_ = -1;
  std::filesystem::path path_;
};

/// Keeps a folder for one writer, among threads and processes, for as long as it lives. A folder
/// that another has is an io error. Where the file system knows no such locks, nothing is kept.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

/// The whole file as text or bytes; larger than `limit` bytes is an input error.
std::string read_text(const std::filesystem::path& path,
                      std::uint64_t limit = std::uint64_t{1} << 32);
/// Writes through a FileWriter.
void write_text(const std::filesystem::path& path, std::string_view text);

/// Regular files that match a pattern, sorted by name: `*`, `?` and `[...]` in any component.
/// A name without wildcards matches itself. No match is an input error that names the pattern.
std::vector<std::filesystem::path> glob_files(std::string_view pattern);

/// Makes a folder and its parents; an io error names the path that failed.
void make_folders(const std::filesystem::path& path);
/// Makes what was written or renamed in a folder durable.
void sync_folder(const std::filesystem::path& path);
/// Renames a file or folder and syncs the parent.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// Swaps two files or folders and syncs their parents. At no time is either name missing, unless
/// the file system cannot swap: then `b` is, for a moment.
void exchange_durably(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace llmc
