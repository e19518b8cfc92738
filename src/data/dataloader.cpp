#include "llmc/data/dataloader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/core/log.h"
#include "llmc/core/rng.h"
#include "llmc/data/token_file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

/// A row: `shard` and `row` count along the epoch's order, not the files'.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t shard = 0;
  std::int64_t row = 0;
};

struct Shard {
  fs::path path;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
};

/// A permutation of 0 … count - 1 that depends on the arguments only (Fisher-Yates). Stream 0 is
/// the order of the shards, stream s + 1 that of the rows of shard s.
std::vector<std::uint32_t> permutation(std::int64_t count, std::uint64_t seed, std::int64_t epoch,
                                       std::int64_t stream) {
  std::vector<std::uint32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0u);
  const std::uint64_t counter_high =
      (static_cast<std::uint64_t>(epoch) << 32) | static_cast<std::uint64_t>(stream);
  for (std::size_t i = order.size(); i > 1; --i) {
    const auto words = philox4x32(seed, i, counter_high);
    // The upper half of the 96-bit product of 64 random bits and i: uniform below i.
    const std::uint64_t bound = i;
    const std::uint64_t low = (words[1] * bound) >> 32;
    const std::uint64_t j = (words[0] * bound + low) >> 32;
    std::swap(order[i - 1], order[static_cast<std::size_t>(j)]);
  }
  return order;
}

/// Reads the batch at a position. Used by one thread at a time.
class RowReader {
 public:
  RowReader(std::vector<Shard> shards, const DataLoaderOptions& options)
      : shards_(std::move(shards)),
        options_(options),
        group_(options.B * options.world_size),
        rows_per_epoch_(
            std::accumulate(shards_.begin(), shards_.end(), std::int64_t{0},
                            [](std::int64_t sum, const Shard& shard) { return sum + shard.rows; })),
        window_(static_cast<std::size_t>(options.T + 1)) {}

  const std::vector<Shard>& shards() const { return shards_; }

  std::int64_t group() const { return group_; }
  std::int64_t rows_per_epoch() const { return rows_per_epoch_; }

  /// The position of the row `rows` after the one at `at`. With kPad, rows behind the last one of
  /// an epoch are at the beginning of the next.
  Position further(Position at, std::int64_t rows) {
    const auto count = static_cast<std::int64_t>(shards_.size());
    at.row += rows;
    for (;;) {
      if (at.shard >= count) {
        at = {at.epoch + 1, 0, options_.tail == Tail::kPad ? 0 : at.row};
      } else if (at.row < shard_at(at).rows) {
        return at;
      } else {
        at = {at.epoch, at.shard + 1, at.row - shard_at(at).rows};
      }
    }
  }

  /// Fills `batch` from the batch of all ranks at a position, and returns that of the next one.
  Position fill(Batch& batch, const Position& at) {
    const std::int64_t B = options_.B, T = options_.T;
    batch.inputs.resize(static_cast<std::size_t>(B * T));
    batch.targets.resize(static_cast<std::size_t>(B * T));
    Position row = further(at, options_.rank * B);
    for (std::int64_t b = 0; b < B; ++b) {
      const bool padding = options_.tail == Tail::kPad && row.epoch != at.epoch;
      fill_row(batch, b, padding ? 0 : read_row(row));
      if (!padding) row = further(row, 1);
    }
    return further(at, group_);
  }

 private:
  std::int64_t shard_index(const Position& at) {
    if (!options_.shuffle) return at.shard;
    if (shard_order_epoch_ != at.epoch) {
      shard_order_ =
          permutation(static_cast<std::int64_t>(shards_.size()), options_.seed, at.epoch, 0);
      shard_order_epoch_ = at.epoch;
    }
    return shard_order_[static_cast<std::size_t>(at.shard)];
  }

  const Shard& shard_at(const Position& at) {
    return shards_[static_cast<std::size_t>(shard_index(at))];
  }

  void open(const Position& at) {
    const std::int64_t index = shard_index(at);
    if (!file_ || open_index_ != index) {
      file_.reset();
      const Shard& shard = shards_[static_cast<std::size_t>(index)];
      file_.emplace(shard.path, options_.vocab_size);
      if (file_->size() != shard.tokens) {
        file_.reset();
        fail(ErrorKind::kInput, "dataloader", shard.path.string(), ": expected ", shard.tokens,
             " tokens as at the start, got another count; the file was changed during the run");
      }
      open_index_ = index;
      row_order_epoch_ = -1;
    }
    if (options_.shuffle && row_order_epoch_ != at.epoch) {
      row_order_ = permutation(shard_at(at).rows, options_.seed, at.epoch, index + 1);
      row_order_epoch_ = at.epoch;
    }
  }

  /// Reads the row at a position and returns how many targets it has.
  std::int64_t read_row(const Position& at) {
    open(at);
    const std::int64_t row =
        options_.shuffle ? std::int64_t{row_order_[static_cast<std::size_t>(at.row)]} : at.row;
    const std::int64_t counted = std::min(options_.T, file_->size() - 1 - row * options_.T);
    file_->read(std::span(window_).first(static_cast<std::size_t>(counted + 1)), row * options_.T);
    return counted;
  }

  /// Row b of the batch: `counted` targets of the row that was read, then padding.
  void fill_row(Batch& batch, std::int64_t b, std::int64_t counted) {
    const std::int64_t T = options_.T;
    std::int32_t* const inputs = batch.inputs.data() + b * T;
    std::int32_t* const targets = batch.targets.data() + b * T;
    std::copy_n(window_.begin(), counted, inputs);
    std::copy_n(window_.begin() + 1, counted, targets);
    std::fill(inputs + counted, inputs + T, 0);
    std::fill(targets + counted, targets + T, kIgnoredTarget);
  }

  std::vector<Shard> shards_;
  DataLoaderOptions options_;
  std::int64_t group_;  // rows of a batch over all ranks
  std::int64_t rows_per_epoch_;
  std::vector<std::int32_t> window_;

  std::vector<std::uint32_t> shard_order_;
  std::int64_t shard_order_epoch_ = -1;
  std::optional<TokenFile> file_;
  std::int64_t open_index_ = -1;
  std::vector<std::uint32_t> row_order_;
  std::int64_t row_order_epoch_ = -1;
};

void check(const DataLoaderOptions& o) {
  const auto require = [](bool holds, const char* name, std::int64_t value, const char* range) {
    if (!holds) {
      fail(ErrorKind::kConfig, "dataloader", name, ": expected ", range, ", got ", value);
    }
  };
  constexpr std::int64_t kLargest = std::int64_t{1} << 31;
  require(o.B >= 1 && o.B <= kLargest, "B", o.B, "1 to 2^31 rows");
  require(o.T >= 1 && o.T <= kLargest, "T", o.T, "1 to 2^31 tokens");
  require(o.B * o.T <= kLargest, "B*T", o.B * o.T, "at most 2^31 tokens");
  require(o.world_size >= 1, "world_size", o.world_size, "1 or more");
  require(o.rank >= 0 && o.rank < o.world_size, "rank", o.rank, "a rank below world_size");
  require(o.read_ahead >= 1 && o.read_ahead <= 1024, "read_ahead", o.read_ahead, "1 to 1024");
  require(o.vocab_size >= 0, "vocab_size", o.vocab_size, "0 or more");
}

std::vector<Shard> inspect(const std::vector<fs::path>& paths, const DataLoaderOptions& options) {
  if (paths.empty()) {
    fail(ErrorKind::kInput, "dataloader", "expected at least one token file, got none");
  }
  std::vector<Shard> shards;
  for (const fs::path& path : paths) {
    const std::int64_t tokens = TokenFile(path).size();
    const std::int64_t targets = std::max<std::int64_t>(tokens - 1, 0);
    const std::int64_t rest = options.tail == Tail::kPad ? options.T - 1 : 0;
    shards.push_back({path, tokens, (targets + rest) / options.T});
  }
  return shards;
}

/// Identifies the shards by their names and sizes, wherever their folder lies.
std::int64_t fingerprint(const std::vector<Shard>& shards) {
  std::string text;
  for (const Shard& shard : shards) {
    text += concat(shard.path.filename().string(), '/', shard.tokens, '\n');
  }
  return static_cast<std::int64_t>(checksum64(text.data(), text.size()));
}

std::int64_t field(const SourceState& state, const char* name) {
  const auto found = state.find(name);
  if (found == state.end()) {
    fail(ErrorKind::kInput, "dataloader", "expected the field '", name,
         "' in the saved data position, got none; it belongs to another kind of source");
  }
  return found->second;
}

void expect_equal(const SourceState& state, const char* name, std::int64_t here, const char* hint) {
  const std::int64_t saved = field(state, name);
  if (saved != here) {
    fail(ErrorKind::kInput, "dataloader", "cannot go to the saved data position: expected ", name,
         " = ", saved, ", got ", here, "; ", hint);
  }
}

}  // namespace

struct DataLoader::Impl {
  struct Slot {
    Batch batch;
    Position after;
    std::exception_ptr error;
  };

  Impl(std::vector<Shard> shards, const DataLoaderOptions& given)
      : options(given),
        reader(std::move(shards), given),
        ring(static_cast<std::size_t>(given.read_ahead)) {}

  ~Impl() { stop(); }

  void start() {
    if (thread.joinable()) return;
    try {
      thread = std::thread([this] { read_ahead(); });
    } catch (const std::system_error& error) {
      fail(ErrorKind::kMemory, "dataloader", "cannot start the reading thread: ", error.what());
    }
  }

  /// Ends the thread and forgets what was read ahead.
  void stop() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
    stopping = false;
    first = filled = 0;
  }

  void go_to(const Position& at) {
    stop();
    position = reader.further(at, 0);
  }

  void read_ahead() {
    Position at = position;
    for (bool good = true; good;) {
      Slot* slot = nullptr;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return stopping || filled < ring.size(); });
        if (stopping) return;
        slot = &ring[(first + filled) % ring.size()];
      }
      slot->error = nullptr;
      try {
        at = slot->after = reader.fill(slot->batch, at);
      } catch (...) {
        slot->error = std::current_exception();
        good = false;
      }
      {
        std::lock_guard lock(mutex);
        ++filled;
      }
      changed.notify_all();
    }
  }

  const DataLoaderOptions options;
  Position position;  // after the last batch handed out
  RowReader reader;   // the thread's, while it runs

  std::thread thread;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  std::vector<Slot> ring;
  std::size_t first = 0;   // the slot handed out next
  std::size_t filled = 0;  // slots ready from there on
};

DataLoader::DataLoader(std::vector<fs::path> paths, const DataLoaderOptions& options) {
  check(options);
  impl_ = std::make_unique<Impl>(inspect(paths, options), options);
  const RowReader& reader = impl_->reader;
  const std::vector<Shard>& shards = reader.shards();
  const std::int64_t needed = options.tail == Tail::kPad ? 2 : options.T + 1;
  if (reader.rows_per_epoch() == 0) {
    const auto largest =
        std::max_element(shards.begin(), shards.end(),
                         [](const Shard& a, const Shard& b) { return a.tokens < b.tokens; });
    fail(ErrorKind::kInput, "dataloader", largest->path.string(), ": expected at least ", needed,
         " tokens for a row of ", options.T, ", got ", largest->tokens, " in the largest of ",
         shards.size(), " files; use a smaller seq_len");
  }
  for (const Shard& shard : shards) {
    if (shard.rows > 0) continue;
    log(LogLevel::kWarning,
        concat("[dataloader] ", shard.path.string(), " is left out: its ", shard.tokens,
               " tokens are fewer than the ", needed, " of a row"));
  }
  if (options.tail == Tail::kNext && reader.rows_per_epoch() < reader.group()) {
    log(LogLevel::kWarning,
        concat("[dataloader] a batch takes ", reader.group(), " rows, more than the ",
               reader.rows_per_epoch(), " of all files: it has some of them more than once"));
  }
  impl_->position = impl_->reader.further({}, 0);
}

DataLoader::~DataLoader() = default;

std::int64_t DataLoader::B() const {
  return impl_->options.B;
}
std::int64_t DataLoader::T() const {
  return impl_->options.T;
}
std::int64_t DataLoader::epoch() const {
  return impl_->position.epoch;
}

std::int64_t DataLoader::batches_per_epoch() const {
  const RowReader& reader = impl_->reader;
  const bool pads = impl_->options.tail == Tail::kPad;
  return (reader.rows_per_epoch() + (pads ? reader.group() - 1 : 0)) / reader.group();
}

std::int64_t DataLoader::tokens_per_epoch() const {
  const RowReader& reader = impl_->reader;
  if (impl_->options.tail == Tail::kNext) return reader.rows_per_epoch() * impl_->options.T;
  std::int64_t tokens = 0;
  for (const Shard& shard : reader.shards()) tokens += std::max<std::int64_t>(shard.tokens - 1, 0);
  return tokens;
}

void DataLoader::next(Batch& batch) {
  Impl& loader = *impl_;
  loader.start();
  {
    std::unique_lock lock(loader.mutex);
    loader.changed.wait(lock, [&] { return loader.filled > 0; });
  }
  Impl::Slot& slot = loader.ring[loader.first];
  if (slot.error) std::rethrow_exception(slot.error);
  std::swap(batch, slot.batch);
  loader.position = slot.after;
  {
    std::lock_guard lock(loader.mutex);
    loader.first = (loader.first + 1) % loader.ring.size();
    --loader.filled;
  }
  loader.changed.notify_all();
}

SourceState DataLoader::state() const {
  const Impl& loader = *impl_;
  const std::vector<Shard>& shards = loader.reader.shards();
  return {{"epoch", loader.position.epoch},
          {"shard", loader.position.shard},
          {"row", loader.position.row},
          {"T", loader.options.T},
          {"shuffle", loader.options.shuffle ? 1 : 0},
          {"seed", loader.options.shuffle ? static_cast<std::int64_t>(loader.options.seed) : 0},
          {"shards", static_cast<std::int64_t>(shards.size())},
          {"shards_fingerprint", fingerprint(shards)}};
}

void DataLoader::restore(const SourceState& saved) {
  const SourceState here = state();
  const auto must_agree = [&](const char* name, const char* hint) {
    expect_equal(saved, name, here.at(name), hint);
  };
  must_agree("T", "seq_len may not change");
  must_agree("shuffle", "shuffle may not change");
  must_agree("seed", "the seed of a shuffled run may not change");
  must_agree("shards", "the list of training files may not change");
  must_agree("shards_fingerprint", "the training files' names or sizes have changed");
  const Position at{field(saved, "epoch"), field(saved, "shard"), field(saved, "row")};
  std::int64_t most_rows = 0;
  for (const Shard& shard : impl_->reader.shards()) most_rows = std::max(most_rows, shard.rows);
  const bool usable = at.epoch >= 0 && at.epoch < (std::int64_t{1} << 32) && at.shard >= 0 &&
                      at.shard < here.at("shards") && at.row >= 0 && at.row <= most_rows;
  if (!usable) {
    fail(ErrorKind::kInput, "dataloader", "expected a data position within ", here.at("shards"),
         " files, got epoch ", at.epoch, ", shard ", at.shard, ", row ", at.row);
  }
  impl_->go_to(at);
}

void DataLoader::reset() {
  impl_->go_to({});
}

}  // namespace llmc
