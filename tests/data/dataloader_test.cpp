#include "llmc/data/dataloader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "llmc/core/log.h"
#include "llmc/data/token_file.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TempFolder;
using Tokens = std::vector<std::int32_t>;

/// Shards whose tokens are 0, 1, 2, … on through all of them, so that a value names its place.
class Shards {
 public:
  explicit Shards(const std::vector<std::int64_t>& sizes) {
    std::int32_t next = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      paths.push_back(folder / concat("shard_", i, ".bin"));
      TokenFileWriter writer(paths.back(), TokenFormat::kU16);
      Tokens tokens(static_cast<std::size_t>(sizes[i]));
      for (std::int32_t& token : tokens) token = next++;
      writer.write(tokens);
      writer.commit();
    }
  }
  TempFolder folder;
  std::vector<fs::path> paths;
};

DataLoaderOptions options_of(std::int64_t B, std::int64_t T) {
  DataLoaderOptions options;
  options.B = B;
  options.T = T;
  return options;
}

Batch next_of(DataLoader& loader) {
  Batch batch;
  loader.next(batch);
  EXPECT_EQ(batch.inputs.size(), static_cast<std::size_t>(loader.B() * loader.T()));
  EXPECT_EQ(batch.targets.size(), batch.inputs.size());
  return batch;
}

/// First inputs of the rows of the next `count` batches.
Tokens row_starts(DataLoader& loader, int count) {
  Tokens starts;
  for (int i = 0; i < count; ++i) {
    const Batch batch = next_of(loader);
    for (std::int64_t b = 0; b < loader.B(); ++b) {
      starts.push_back(batch.inputs[static_cast<std::size_t>(b * loader.T())]);
    }
  }
  return starts;
}

TEST(DataLoaderTest, RowsFollowEachOtherAndTheTailIsDropped) {
  const Shards shards({5 * 4 + 3, 4 + 1, 4});  // 5 rows, 1 row, too small
  std::string warning;
  set_log_sink([&](LogLevel, std::string_view message) { warning = message; });
  DataLoader loader(shards.paths, options_of(3, 4));
  set_log_sink([](LogLevel, std::string_view) {});
  EXPECT_NE(warning.find("shard_2.bin is left out: its 4 tokens are fewer than the 5"),
            std::string::npos)
      << warning;
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  EXPECT_EQ(loader.tokens_per_epoch(), 24);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const Tokens& begins : {Tokens{0, 4, 8}, {12, 16, 23}}) {
      EXPECT_EQ(loader.epoch(), epoch);
      const Batch batch = next_of(loader);
      for (std::int32_t i = 0; i < 12; ++i) {
        const auto at = static_cast<std::size_t>(i);
        EXPECT_EQ(batch.inputs[at], begins[at / 4] + i % 4);
        EXPECT_EQ(batch.targets[at], begins[at / 4] + i % 4 + 1);
      }
    }
  }
  EXPECT_EQ(loader.epoch(), 3);
}

// However the rows are split among batches and ranks: the shards have 10, 2, 5 and 15 of them.
TEST(DataLoaderTest, RowsDependOnNeitherBatchSizeNorRanks) {
  const Shards shards({41, 9, 23, 61});
  for (const bool shuffle : {false, true}) {
    DataLoaderOptions options = options_of(1, 4);
    options.shuffle = shuffle;
    DataLoader one(shards.paths, options);
    EXPECT_EQ(one.tokens_per_epoch(), 32 * 4);
    const Tokens expected = row_starts(one, 240);
    for (const auto& [B, ranks] :
         {std::pair{3, 1}, {7, 1}, {1, 5}, {4, 3}, {6, 4}, {24, 1}, {20, 2}}) {
      SCOPED_TRACE(concat("shuffle ", shuffle, ", B ", B, ", ranks ", ranks));
      options.B = B;
      options.world_size = ranks;
      const int batches = 240 / (B * ranks);
      Tokens merged(static_cast<std::size_t>(batches * B * ranks));
      for (options.rank = 0; options.rank < ranks; ++options.rank) {
        DataLoader loader(shards.paths, options);
        EXPECT_EQ(loader.tokens_per_epoch(), one.tokens_per_epoch());
        const Tokens rows = row_starts(loader, batches);
        for (int i = 0; i < batches * B; ++i) {
          merged[static_cast<std::size_t>((i / B * ranks + options.rank) * B + i % B)] =
              rows[static_cast<std::size_t>(i)];
        }
      }
      options.rank = 0;
      EXPECT_EQ(merged, Tokens(expected.begin(), expected.begin() + batches * B * ranks));
    }
  }
}

TEST(DataLoaderTest, ABatchMayHaveMoreRowsThanThereAre) {
  const Shards shards({9, 5});  // 2 rows, 1 row
  std::string warning;
  set_log_sink([&](LogLevel, std::string_view message) { warning = message; });
  DataLoader loader(shards.paths, options_of(7, 4));
  set_log_sink([](LogLevel, std::string_view) {});
  EXPECT_NE(warning.find("a batch takes 7 rows, more than the 3"), std::string::npos) << warning;
  EXPECT_EQ(row_starts(loader, 1), (Tokens{0, 4, 9, 0, 4, 9, 0}));
  EXPECT_EQ(loader.epoch(), 2);
  EXPECT_EQ(row_starts(loader, 1), (Tokens{4, 9, 0, 4, 9, 0, 4}));
}

TEST(DataLoaderTest, RanksTakeSlicesOfOneWindow) {
  const Shards shards({49, 49});
  DataLoaderOptions options = options_of(2, 3);
  options.world_size = 4;
  std::map<int, Tokens> starts;
  for (options.rank = 0; options.rank < 4; ++options.rank) {
    DataLoader loader(shards.paths, options);
    EXPECT_EQ(loader.batches_per_epoch(), 4);
    EXPECT_EQ(loader.tokens_per_epoch(), 96);
    starts[options.rank] = row_starts(loader, 4);
  }
  for (int rank = 0; rank < 4; ++rank) {
    const std::int32_t r = rank * 6;
    EXPECT_EQ(starts[rank], (Tokens{r, r + 3, r + 24, r + 27, r + 49, r + 52, r + 73, r + 76}));
  }
}

TEST(DataLoaderTest, ShuffleCoversEveryRowOnceAndDependsOnSeedAndEpochOnly) {
  const Shards shards({41, 23, 61});  // 10, 5 and 15 rows of 4
  DataLoaderOptions options = options_of(5, 4);
  options.shuffle = true;
  options.seed = 7;
  Tokens every_row;
  for (std::int32_t i = 0; i < 10; ++i) every_row.push_back(i * 4);
  for (std::int32_t i = 0; i < 5; ++i) every_row.push_back(41 + i * 4);
  for (std::int32_t i = 0; i < 15; ++i) every_row.push_back(64 + i * 4);

  DataLoader loader(shards.paths, options);
  std::vector<Tokens> epochs;
  for (int epoch = 0; epoch < 4; ++epoch) epochs.push_back(row_starts(loader, 6));
  bool shards_moved = false;
  for (std::size_t epoch = 0; epoch < 4; ++epoch) {
    Tokens sorted = epochs[epoch];
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, every_row);
    EXPECT_NE(epochs[epoch], every_row);
    for (std::size_t other = 0; other < epoch; ++other) EXPECT_NE(epochs[epoch], epochs[other]);
    shards_moved |= epochs[epoch].front() > 40;
  }
  EXPECT_TRUE(shards_moved);

  // Another batch size and two ranks read the same rows in the same order.
  options.B = 1;
  options.world_size = 5;
  Tokens merged(60);
  for (options.rank = 0; options.rank < 5; ++options.rank) {
    DataLoader rank(shards.paths, options);
    const Tokens rows = row_starts(rank, 12);
    for (std::size_t i = 0; i < 12; ++i)
      merged[i * 5 + static_cast<std::size_t>(options.rank)] = rows[i];
  }
  Tokens expected = epochs[0];
  expected.insert(expected.end(), epochs[1].begin(), epochs[1].end());
  EXPECT_EQ(merged, expected);

  options.rank = 0;
  options.seed = 8;
  DataLoader other_seed(shards.paths, options);
  EXPECT_NE(row_starts(other_seed, 6), Tokens(merged.begin(), merged.begin() + 6));
}

TEST(DataLoaderTest, PaddingCountsEveryTargetOnce) {
  const Shards shards({10, 2, 1, 29});
  for (const int world_size : {1, 2, 3}) {
    DataLoaderOptions options = options_of(2, 4);
    options.tail = Tail::kPad;
    options.world_size = world_size;
    std::map<std::int32_t, int> seen;
    for (options.rank = 0; options.rank < world_size; ++options.rank) {
      DataLoader loader(shards.paths, options);
      EXPECT_EQ(loader.tokens_per_epoch(), 9 + 1 + 28);
      for (std::int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
        EXPECT_EQ(loader.epoch(), 0);
        const Batch batch = next_of(loader);
        for (std::size_t j = 0; j < batch.targets.size(); ++j) {
          if (batch.targets[j] == kIgnoredTarget) {
            EXPECT_EQ(batch.inputs[j], 0);
          } else {
            EXPECT_EQ(batch.targets[j], batch.inputs[j] + 1);
            ++seen[batch.targets[j]];
          }
        }
      }
      EXPECT_EQ(loader.epoch(), 1);
    }
    EXPECT_EQ(seen.size(), 9u + 1u + 28u);
    for (const auto& [target, count] : seen) {
      EXPECT_EQ(count, 1) << target;
      EXPECT_TRUE(target != 0 && target != 10 && target != 12 && target != 13) << target;
    }
  }
}

class DataLoaderResume : public ::testing::TestWithParam<std::tuple<bool, Tail>> {};

TEST_P(DataLoaderResume, ContinuesExactlyAcrossShardsAndEpochs) {
  const Shards shards({41, 9, 23, 64, 3});
  DataLoaderOptions options = options_of(2, 4);
  std::tie(options.shuffle, options.tail) = GetParam();
  options.seed = 3;
  const int steps = 60;
  DataLoader whole(shards.paths, options);
  std::vector<Batch> batches;
  std::vector<SourceState> states{whole.state()};
  for (int i = 0; i < steps; ++i) {
    batches.push_back(next_of(whole));
    states.push_back(whole.state());
  }
  EXPECT_GE(whole.epoch(), 2);
  DataLoader resumed(shards.paths, options);
  for (std::size_t begin = 0; begin < static_cast<std::size_t>(steps); ++begin) {
    resumed.restore(states[begin]);
    EXPECT_EQ(resumed.state(), states[begin]);
    for (std::size_t i = begin; i < std::min<std::size_t>(begin + 9, steps); ++i) {
      const Batch batch = next_of(resumed);
      ASSERT_EQ(batch.inputs, batches[i].inputs) << "from " << begin << ", batch " << i;
      ASSERT_EQ(batch.targets, batches[i].targets);
    }
  }
  resumed.reset();
  EXPECT_EQ(next_of(resumed).inputs, batches[0].inputs);
}

INSTANTIATE_TEST_SUITE_P(Modes, DataLoaderResume,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Tail::kNext, Tail::kPad)));

TEST(DataLoaderTest, ResumesWithAnotherBatchSizeAndNumberOfRanks) {
  const Shards shards({97, 49});
  DataLoaderOptions options = options_of(6, 4);
  options.shuffle = true;
  DataLoader first(shards.paths, options);
  row_starts(first, 3);
  const SourceState state = first.state();
  const Tokens expected = row_starts(first, 5);
  options.B = 3;
  options.world_size = 2;
  Tokens merged(30);
  for (options.rank = 0; options.rank < 2; ++options.rank) {
    DataLoader rank(shards.paths, options);
    rank.restore(state);
    const Tokens rows = row_starts(rank, 5);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      merged[i / 3 * 6 + static_cast<std::size_t>(options.rank) * 3 + i % 3] = rows[i];
    }
  }
  EXPECT_EQ(merged, expected);
}

TEST(DataLoaderTest, RefusesAStateOfOtherData) {
  const Shards shards({100, 50});
  const Shards others({100, 51});
  DataLoaderOptions options = options_of(2, 4);
  DataLoader loader(shards.paths, options);
  const SourceState good = loader.state();
  const auto expect_refused = [&](const std::string& part, SourceState state) {
    expect_error(ErrorKind::kInput, part, [&] { loader.restore(state); });
  };
  expect_refused("fingerprint", DataLoader(others.paths, options).state());
  expect_refused("shards = 1", DataLoader({shards.paths[0]}, options).state());
  expect_refused("T = 5", DataLoader(shards.paths, options_of(2, 5)).state());
  options.shuffle = true;
  options.seed = 1;
  expect_refused("shuffle = 1", DataLoader(shards.paths, options).state());
  for (const char* name : {"epoch", "shard", "row", "T", "seed", "shards"}) {
    SourceState missing = good;
    missing.erase(name);
    expect_refused(concat("'", name, "'"), missing);
  }
  for (const auto& [name, value] : SourceState{{"epoch", -1}, {"shard", 2}, {"row", 1000}}) {
    SourceState outside = good;
    outside[name] = value;
    expect_refused("within 2 files", outside);
  }
  EXPECT_EQ(loader.state(), good);
  EXPECT_EQ(next_of(loader).inputs.front(), 0);
}

TEST(DataLoaderTest, RefusesUnusableOptionsAndFiles) {
  const Shards shards({30, 20});
  const auto expect_refused = [&](ErrorKind kind, const std::string& part,
                                  const DataLoaderOptions& options) {
    expect_error(kind, part, [&] { DataLoader loader(shards.paths, options); });
  };
  expect_refused(ErrorKind::kConfig, "B: expected 1", options_of(0, 4));
  expect_refused(ErrorKind::kConfig, "T: expected 1", options_of(4, -1));
  DataLoaderOptions options = options_of(2, 4);
  options.rank = 1;
  expect_refused(ErrorKind::kConfig, "rank: expected", options);
  options = options_of(2, 4);
  options.read_ahead = 0;
  expect_refused(ErrorKind::kConfig, "read_ahead", options);
  expect_refused(ErrorKind::kInput,
                 "expected at least 31 tokens for a row of 30, got 30 in the largest of 2 files",
                 options_of(1, 30));
  expect_error(ErrorKind::kInput, "at least one token file",
               [] { DataLoader loader({}, DataLoaderOptions{}); });
  write_text(shards.folder / "text.bin", "not tokens");
  expect_error(ErrorKind::kInput, "text.bin", [&] {
    DataLoader loader({shards.paths[0], shards.folder / "text.bin"}, options_of(1, 1));
  });
}

TEST(DataLoaderTest, ErrorsOfTheThreadAreThrownByNext) {
  const Shards shards({41, 41});
  DataLoaderOptions options = options_of(2, 4);
  options.vocab_size = 60;
  options.read_ahead = 8;
  DataLoader loader(shards.paths, options);
  const auto read_to_the_error = [&] {
    for (int i = 0; i < 7; ++i) next_of(loader);
    for (int i = 0; i < 2; ++i) {
      expect_error(ErrorKind::kInput, "below 60, got 60 at token 19", [&] { next_of(loader); });
    }
  };
  read_to_the_error();
  loader.reset();
  read_to_the_error();
  loader.reset();
  fs::remove(shards.paths[1]);
  for (int i = 0; i < 5; ++i) next_of(loader);
  expect_error(ErrorKind::kInput, "shard_1.bin", [&] { next_of(loader); });
}

TEST(DataLoaderTest, AChangedFileIsAnError) {
  const Shards shards({41, 41});
  DataLoader loader(shards.paths, options_of(2, 4));
  TokenFileWriter writer(shards.paths[0], TokenFormat::kU16);
  writer.write(Tokens(60, 1));
  writer.commit();
  expect_error(ErrorKind::kInput, "the file was changed", [&] { next_of(loader); });
}

TEST(DataLoaderTest, ReadAheadDoesNotChangeTheOrder) {
  const Shards shards({41, 57});
  DataLoaderOptions options = options_of(1, 4);
  options.shuffle = true;
  DataLoader reference(shards.paths, options);
  const Tokens expected = row_starts(reference, 100);
  for (const int read_ahead : {1, 2, 64}) {
    options.read_ahead = read_ahead;
    DataLoader loader(shards.paths, options);
    EXPECT_EQ(row_starts(loader, 100), expected);
  }
}

}  // namespace
}  // namespace llmc
