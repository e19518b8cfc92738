#include "core/input_stream.h"

#include <poll.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRawBytes = std::size_t{1} << 18;
constexpr int kGzipOnly = 15 + 16;  // zlib's window bits: the largest window, gzip headers

struct Magic {
  std::string_view bytes;
  std::string_view name;
  std::string_view hint;
};
constexpr std::string_view kGzipMagic = "\x1f\x8b";
constexpr Magic kForeign[] = {
    {"\x28\xb5\x2f\xfd", "zstd data",
     "unpack it first, for example with zstd -dc FILE and input -"},
    {"\xfd\x37\x7a\x58", "xz data", "unpack it first, for example with xz -dc FILE and input -"},
    {"BZh9", "bzip2 data", "unpack it first, for example with bzip2 -dc FILE and input -"},
    {"PK\x03\x04", "a zip archive", "unpack it first"},
    {"PAR1", "a parquet file", "convert it to JSON Lines first; scripts/data/parquet.py does"},
};

std::size_t read_standard_input(char* out, std::size_t bytes, const std::function<bool()>& go_on) {
  constexpr int kMilliseconds = 100;
  for (;;) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (go_on && ::poll(&input, 1, kMilliseconds) <= 0) {
      if (!go_on()) return 0;
      continue;
    }
    const ssize_t n = ::read(STDIN_FILENO, out, bytes);
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno != EINTR) {
      fail(ErrorKind::kIo, "file",
           "cannot read the standard input: ", std::generic_category().message(errno));
    }
  }
}

}  // namespace

struct InputStream::Impl {
  fs::path path;
  std::optional<FileReader> file;  // none: the standard input
  std::function<bool()> go_on;
  std::vector<char> raw = std::vector<char>(kRawBytes);
  std::size_t raw_begin = 0;
  std::size_t raw_end = 0;
  bool raw_ended = false;
  std::uint64_t taken = 0;  // bytes read into `raw` so far
  bool compressed = false;
  bool in_member = false;
  z_stream inflater{};
  bool inflater_ready = false;

  ~Impl() {
    if (inflater_ready) ::inflateEnd(&inflater);
  }

  template <class... Parts>
  [[noreturn]] void fail_input(const Parts&... parts) const {
    fail(ErrorKind::kInput, "file", "cannot read ", path.string(), ": ", parts...);
  }

  std::string_view unread() const { return {raw.data() + raw_begin, raw_end - raw_begin}; }

  /// Adds to `raw` until it holds `wanted` unread bytes or the file ends.
  void fill(std::size_t wanted) {
    if (raw_end - raw_begin >= wanted || raw_ended) return;
    std::copy(raw.begin() + static_cast<std::ptrdiff_t>(raw_begin),
              raw.begin() + static_cast<std::ptrdiff_t>(raw_end), raw.begin());
    raw_end -= raw_begin;
    raw_begin = 0;
    while (raw_end < wanted && !raw_ended) {
      char* to = raw.data() + raw_end;
      const std::size_t room = raw.size() - raw_end;
      const std::size_t got =
          file ? file->read_some(to, room) : read_standard_input(to, room, go_on);
      raw_ended = got == 0;
      raw_end += got;
      taken += got;
    }
  }

  void recognise() {
    fill(kForeign[0].bytes.size());
    compressed = unread().starts_with(kGzipMagic);
    if (!compressed && path.extension() == ".gz" && !unread().empty()) {
      fail_input("expected gzip data in a file of this name, got something else");
    }
    for (const Magic& magic : kForeign) {
      if (unread().starts_with(magic.bytes)) {
        fail_input("expected text, JSON Lines or gzip of these, got ", magic.name, "; ",
                   magic.hint);
      }
    }
    if (!compressed) return;
    if (::inflateInit2(&inflater, kGzipOnly) != Z_OK) {
      fail(ErrorKind::kMemory, "file", "cannot inflate ", path.string(), ": out of memory");
    }
    inflater_ready = true;
    in_member = true;
  }

  /// True if another member follows. Zeros after the last one are padding.
  bool next_member() {
    for (;;) {
      fill(kGzipMagic.size());
      const std::string_view rest = unread();
      if (rest.empty()) return false;
      if (rest.starts_with(kGzipMagic)) break;
      const std::size_t zeros = std::min(rest.find_first_not_of('\0'), rest.size());
      if (zeros == 0) fail_input("expected the end of the gzip data, got other bytes after it");
      raw_begin += zeros;
    }
    ::inflateReset(&inflater);
    in_member = true;
    return true;
  }

  std::size_t inflate_some(char* out, std::size_t bytes) {
    inflater.next_out = reinterpret_cast<Bytef*>(out);
    inflater.avail_out = static_cast<uInt>(std::min<std::size_t>(bytes, 1u << 30));
    const auto room = inflater.avail_out;
    while (inflater.avail_out == room) {
      if (!in_member && !next_member()) return 0;
      fill(1);
      inflater.next_in = reinterpret_cast<Bytef*>(raw.data() + raw_begin);
      inflater.avail_in = static_cast<uInt>(raw_end - raw_begin);
      const int result = ::inflate(&inflater, Z_NO_FLUSH);
      raw_begin = raw_end - inflater.avail_in;
      if (result == Z_STREAM_END) {
        in_member = false;
      } else if (result == Z_BUF_ERROR && raw_ended && unread().empty()) {
        // It can go on from nothing only while it still has output to give.
        fail_input("the gzip data is truncated");
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        fail_input("the gzip data is damaged",
                   inflater.msg == nullptr ? "" : concat(" (", inflater.msg, ")"));
      }
    }
    return room - inflater.avail_out;
  }
};

InputStream::InputStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->recognise();
}

InputStream::InputStream(fs::path path) : impl_(std::make_unique<Impl>()) {
  impl_->file.emplace(path);
  impl_->path = std::move(path);
  impl_->recognise();
}

InputStream InputStream::standard_input(std::function<bool()> go_on) {
  auto impl = std::make_unique<Impl>();
  impl->go_on = std::move(go_on);
  impl->path = "the standard input";
  return InputStream(std::move(impl));
}

InputStream::~InputStream() = default;
InputStream::InputStream(InputStream&&) noexcept = default;
InputStream& InputStream::operator=(InputStream&&) noexcept = default;

std::size_t InputStream::read_some(char* out, std::size_t bytes) {
  Impl& stream = *impl_;
  if (bytes == 0) return 0;
  if (stream.compressed) return stream.inflate_some(out, bytes);
  if (stream.unread().empty()) stream.fill(1);
  const std::size_t n = std::min(bytes, stream.unread().size());
  std::copy_n(stream.unread().data(), n, out);
  stream.raw_begin += n;
  return n;
}

std::uint64_t InputStream::consumed() const {
  return impl_->taken - impl_->unread().size();
}

}  // namespace llmc
