#include "llmc/core/file.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "llmc/core/error.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

static_assert(sizeof(off_t) == 8, "file positions must be 64-bit");

constexpr std::size_t kBufferBytes = std::size_t{1} << 18;
constexpr std::size_t kJumpBytes = 4096;
constexpr mode_t kFileMode = 0666;

[[noreturn]] void fail_system(std::string_view what, const fs::path& path, int error) {
  const bool wrong_name = error == ENOENT || error == ENOTDIR || error == EISDIR;
  fail(wrong_name ? ErrorKind::kInput : ErrorKind::kIo, "file", what, " ", path.string(), ": ",
       std::generic_category().message(error));
}

/// Calls `open` again when a signal interrupts it.
int open_descriptor(const fs::path& path, int flags) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, kFileMode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { reset(-1); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  void reset(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

/// Bytes written before an error, and errno of it (0: all were written).
struct Written {
  std::size_t bytes = 0;
  int error = 0;
};

/// Writes all bytes through `write_some(data, bytes, done)`, which is one system call.
template <class WriteSome>
Written write_fully(const char* data, std::size_t bytes, WriteSome write_some) {
  Written done;
  while (done.bytes < bytes) {
    const ssize_t n = write_some(data + done.bytes, bytes - done.bytes, done.bytes);
    if (n > 0) {
      done.bytes += static_cast<std::size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      done.error = n == 0 ? ENOSPC : errno;
      return done;
    }
  }
  return done;
}

fs::path folder_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

void sync_descriptor(int fd, const fs::path& path) {
  int result = 0;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail_system("cannot make durable", path, errno);
}

}  // namespace

struct FileReader::Impl {
  fs::path path;
  Descriptor fd;
  std::uint64_t size = 0;
  std::uint64_t position = 0;
  // Bytes of the file from `buffer_begin`; small reads are served from here.
  std::vector<char> buffer;
  std::uint64_t buffer_begin = 0;

  std::size_t read_at(std::uint64_t from, char* out, std::size_t bytes) const {
    std::size_t done = 0;
    while (done < bytes) {
      const ssize_t n =
          ::pread(fd.get(), out + done, bytes - done, static_cast<off_t>(from + done));
      if (n > 0) {
        done += static_cast<std::size_t>(n);
      } else if (n == 0) {
        break;
      } else if (errno != EINTR) {
        fail_system(concat("cannot read ", bytes, " bytes at offset ", from, " of"), path, errno);
      }
    }
    return done;
  }

  std::size_t take_buffered(char* out, std::size_t bytes) {
    if (position < buffer_begin || position - buffer_begin >= buffer.size()) return 0;
    const auto skip = static_cast<std::size_t>(position - buffer_begin);
    const std::size_t n = std::min(bytes, buffer.size() - skip);
    std::memcpy(out, buffer.data() + skip, n);
    position += n;
    return n;
  }

  /// Reads ahead far when reads follow each other, little after a jump.
  void refill(std::size_t needed) {
    const bool sequential = position == 0 || position == buffer_begin + buffer.size();
    buffer.resize(sequential ? kBufferBytes : std::max(needed, kJumpBytes));
    buffer_begin = position;
    std::size_t got = 0;
    try {
      got = read_at(position, buffer.data(), buffer.size());
    } catch (...) {
      buffer.clear();
      throw;
    }
    buffer.resize(got);
  }
};

FileReader::FileReader(fs::path path) : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  impl_->fd.reset(open_descriptor(impl_->path, O_RDONLY | O_NONBLOCK));
  if (impl_->fd.get() < 0) fail_system("cannot open", impl_->path, errno);
  struct stat info {};
  if (::fstat(impl_->fd.get(), &info) != 0) fail_system("cannot inspect", impl_->path, errno);
  if (!S_ISREG(info.st_mode)) {
    fail(ErrorKind::kInput, "file", "cannot read ", impl_->path.string(),
         ": expected a regular file, got a ", S_ISDIR(info.st_mode) ? "folder" : "special file");
  }
  impl_->size = static_cast<std::uint64_t>(info.st_size);
}

FileReader::~FileReader() = default;
FileReader::FileReader(FileReader&&) noexcept = default;
FileReader& FileReader::operator=(FileReader&&) noexcept = default;

const fs::path& FileReader::path() const {
  return impl_->path;
}
std::uint64_t FileReader::size() const {
  return impl_->size;
}
std::uint64_t FileReader::position() const {
  return impl_->position;
}
void FileReader::seek(std::uint64_t position) {
  impl_->position = position;
}

std::size_t FileReader::read_some(void* out, std::size_t bytes) {
  Impl& file = *impl_;
  char* to = static_cast<char*>(out);
  std::size_t done = file.take_buffered(to, bytes);
  if (done == bytes) return done;
  const std::size_t rest = bytes - done;
  if (rest >= kBufferBytes) {
    const std::size_t got = file.read_at(file.position, to + done, rest);
    file.position += got;
    return done + got;
  }
  file.refill(rest);
  return done + file.take_buffered(to + done, rest);
}

void FileReader::read(void* out, std::size_t bytes) {
  const std::uint64_t begin = impl_->position;
  const std::size_t got = read_some(out, bytes);
  if (got != bytes) {
    fail(ErrorKind::kInput, "file", "cannot read ", path().string(), ": expected ", bytes,
         " bytes at offset ", begin, ", got ", got, "; the file is truncated");
  }
}

struct FileWriter::Impl {
  fs::path target;
  fs::path temporary;
  Descriptor fd;
  std::vector<char> buffer;    // written to the file at `flushed` next
  std::uint64_t flushed = 0;   // file position of buffer.front()
  std::uint64_t file_end = 0;  // highest position that reached the system
  bool committed = false;

  ~Impl() {
    if (fd.get() >= 0 && !committed) ::unlink(temporary.c_str());
  }

  /// Opens the temporary file for this writer alone. One left behind by a killed process is taken
  /// over; one that a live writer holds is an error.
  void open_temporary() {
    for (;;) {
      fd.reset(open_descriptor(temporary, O_WRONLY | O_CREAT | O_NOFOLLOW));
      if (fd.get() < 0) fail_system("cannot create", temporary, errno);
      if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        fd.reset(-1);
        fail(ErrorKind::kIo, "file", "cannot write ", target.string(),
             ": another writer has it open");
      }
      // The name may have been renamed or removed between open and lock: then begin again.
      struct stat ours {};
      struct stat named {};
      if (::fstat(fd.get(), &ours) != 0) fail_system("cannot inspect", temporary, errno);
      const bool same = ::lstat(temporary.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
                        ours.st_dev == named.st_dev;
      if (same) break;
    }
    if (::ftruncate(fd.get(), 0) != 0) fail_system("cannot empty", temporary, errno);
  }

  void flush() {
    write_out(buffer.data(), buffer.size());
    buffer.clear();
  }

  void write_out(const char* data, std::size_t bytes) {
    const Written done =
        write_fully(data, bytes, [this](const char* from, std::size_t n, std::size_t offset) {
          return ::pwrite(fd.get(), from, n, static_cast<off_t>(flushed + offset));
        });
    flushed += done.bytes;
    file_end = std::max(file_end, flushed);
    if (done.error != 0) {
      fail(ErrorKind::kIo, "file", "cannot write ", target.string(), ": ",
           std::generic_category().message(done.error), " after ", file_end,
           " bytes; the incomplete file is removed");
    }
  }
};

FileWriter::FileWriter(fs::path path) : impl_(std::make_unique<Impl>()) {
  std::error_code ignored;
  if (fs::is_symlink(path, ignored)) {
    const fs::path resolved = fs::weakly_canonical(path, ignored);
    if (!ignored) path = resolved;
  }
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail(ErrorKind::kInput, "file", "cannot write ", path.string(),
         ": expected a regular file or a free name, got a ",
         fs::is_directory(status) ? "folder" : "special file");
  }
  if (path.filename().empty()) {
    fail(ErrorKind::kInput, "file", "cannot write '", path.string(), "': expected a file name");
  }
  impl_->temporary = folder_of(path) / concat(".", path.filename().string(), ".tmp");
  impl_->target = std::move(path);
  impl_->open_temporary();
  impl_->buffer.reserve(kBufferBytes);
}

FileWriter::~FileWriter() = default;
FileWriter::FileWriter(FileWriter&&) noexcept = default;
FileWriter& FileWriter::operator=(FileWriter&&) noexcept = default;

void FileWriter::write(const void* data, std::size_t bytes) {
  Impl& file = *impl_;
  const char* from = static_cast<const char*>(data);
  if (file.buffer.size() + bytes > kBufferBytes) file.flush();
  if (bytes > kBufferBytes) {
    file.write_out(from, bytes);
  } else {
    file.buffer.insert(file.buffer.end(), from, from + bytes);
  }
}

void FileWriter::seek(std::uint64_t position) {
  impl_->flush();
  impl_->flushed = position;
}

std::uint64_t FileWriter::position() const {
  return impl_->flushed + impl_->buffer.size();
}

void FileWriter::commit() {
  Impl& file = *impl_;
  file.flush();
  sync_descriptor(file.fd.get(), file.target);
  if (::rename(file.temporary.c_str(), file.target.c_str()) != 0) {
    fail_system("cannot rename into place", file.target, errno);
  }
  file.committed = true;
  file.fd.reset(-1);
  sync_folder(folder_of(file.target));
}

AppendFile::AppendFile(fs::path path) : path_(std::move(path)) {
  fd_ = open_descriptor(path_, O_WRONLY | O_CREAT | O_APPEND);
  if (fd_ < 0) fail_system("cannot open for appending", path_, errno);
}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

void AppendFile::append(std::string_view text) {
  std::string error;
  if (append_part(text, error) < text.size()) fail(ErrorKind::kIo, "file", error);
}

std::size_t AppendFile::append_part(std::string_view text, std::string& error) {
  const Written done = write_fully(
      text.data(), text.size(),
      [this](const char* from, std::size_t n, std::size_t) { return ::write(fd_, from, n); });
  if (done.error != 0) {
    error = concat("cannot append to ", path_.string(), ": ",
                   std::generic_category().message(done.error), " after ", done.bytes, " of ",
                   text.size(), " bytes");
  }
  return done.bytes;
}

FolderLock::FolderLock(const fs::path& folder)
    : fd_(open_descriptor(folder, O_RDONLY | O_DIRECTORY)) {
  if (fd_ < 0) fail_system("cannot open the folder", folder, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(fd_);
  fail(ErrorKind::kIo, "file", "cannot use ", folder.string(),
       ": expected a folder that nothing else writes to, got one in use; wait for the other "
       "program to end or choose another folder");
}

FolderLock::~FolderLock() {
  ::close(fd_);
}

std::string read_text(const fs::path& path, std::uint64_t limit) {
  FileReader reader(path);
  if (reader.size() > limit) {
    fail(ErrorKind::kInput, "file", "cannot read ", path.string(), ": expected at most ", limit,
         " bytes, got ", reader.size());
  }
  std::string text(static_cast<std::size_t>(reader.size()), '\0');
  reader.read(text.data(), text.size());
  return text;
}

void write_text(const fs::path& path, std::string_view text) {
  FileWriter writer(path);
  writer.write(text);
  writer.commit();
}

std::vector<fs::path> glob_files(std::string_view pattern) {
  const fs::path name(pattern);
  std::error_code ignored;
  if (fs::is_regular_file(name, ignored)) return {name};
  if (fs::is_directory(name, ignored)) {
    fail(ErrorKind::kInput, "file", "expected a file or pattern, got the folder ", pattern,
         "; name the files in it, for example ", (name / "*.bin").string());
  }

  struct Matches : glob_t {
    Matches() : glob_t{} {}
    ~Matches() { ::globfree(this); }
  } matches;
  const int result = ::glob(name.c_str(), GLOB_NOSORT | GLOB_NOESCAPE, nullptr, &matches);
  if (result != 0 && result != GLOB_NOMATCH) {
    fail(ErrorKind::kIo, "file", "cannot list the files that match ", pattern);
  }
  std::vector<fs::path> files;
  for (std::size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) {
    fs::path file(matches.gl_pathv[i]);
    if (fs::is_regular_file(file, ignored)) files.push_back(std::move(file));
  }
  if (files.empty()) {
    fail(ErrorKind::kInput, "file", "no file matches '", pattern, "'; check the path");
  }
  std::sort(files.begin(), files.end());
  return files;
}

void make_folders(const fs::path& path) {
  if (path.empty()) return;
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path, error)) {
    fail(ErrorKind::kIo, "file", "cannot make the folder ", path.string(), ": ",
         error ? error.message() : std::string("a file has this name"));
  }
}

void sync_folder(const fs::path& path) {
  const fs::path folder = path.empty() ? fs::path(".") : path;
  const Descriptor fd(open_descriptor(folder, O_RDONLY | O_DIRECTORY));
  if (fd.get() < 0) fail_system("cannot open the folder", folder, errno);
  // Some network file systems cannot sync a folder and say EINVAL: nothing more can be done there.
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != EINTR) {
    fail_system("cannot make durable the folder", folder, errno);
  }
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail_system(concat("cannot rename ", from.string(), " to"), to, errno);
  }
  sync_folder(folder_of(to));
  if (folder_of(from) != folder_of(to)) sync_folder(folder_of(from));
}

void exchange_durably(const fs::path& a, const fs::path& b) {
#ifdef RENAME_EXCHANGE
  const bool swapped = ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
  if (!swapped && errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
    fail_system(concat("cannot swap ", a.string(), " with"), b, errno);
  }
#else
  const bool swapped = false;
#endif
  if (!swapped) {
    const fs::path aside = folder_of(a) / concat(a.filename().string(), ".swap");
    rename_durably(b, aside);
    rename_durably(a, b);
    rename_durably(aside, a);
  }
  sync_folder(folder_of(a));
  if (folder_of(a) != folder_of(b)) sync_folder(folder_of(b));
}

}  // namespace llmc
