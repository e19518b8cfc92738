#include "llmc/io/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "io/manifest.h"
#include "io/tiny_run.h"
#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/io/safetensors.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::TinyRun;

CheckpointInfo info_of(TinyRun& run, std::int64_t step) {
  CheckpointInfo info;
  info.step = step;
  info.model = run.model.config();
  info.updates = run.model.read_step_block().updates;
  return info;
}

class Checkpoint : public ::testing::Test {
 protected:
  testing::TempFolder folder_;

  CheckpointWriter writer_of(TinyRun& run, std::int64_t keep = 0) {
    return {folder_.path(), run.model.parameters(), run.optimizer, {.keep = keep}};
  }
  fs::path save(TinyRun& run, std::int64_t step) {
    CheckpointWriter writer = writer_of(run);
    writer.save(run.model.stream(), info_of(run, step));
    writer.wait();
    return checkpoint_folder(folder_.path(), step);
  }
  static void restore(TinyRun& run, const fs::path& folder) {
    CheckpointReader(folder).read_all(run.model.stream(), run.model.parameters(), run.optimizer,
                                      run.model.step_block());
  }
};

TEST_F(Checkpoint, ResumesToTheBit) {
  struct Case {
    DType dtype;
    bool masters;
  };
  for (const Case c : {Case{DType::kF32, false}, {DType::kBF16, true}, {DType::kBF16, false}}) {
    TinyRun straight(c.dtype, c.masters);
    straight.begin();
    std::vector<float> losses;
    fs::path folder;
    for (int i = 0; i < 20; ++i) {
      if (i == 10) folder = save(straight, 10);
      losses.push_back(straight.step(i));
    }
    TinyRun resumed(c.dtype, c.masters);
    resumed.begin(7);  // whatever is there is replaced
    resumed.step(0);
    restore(resumed, folder);
    for (int i = 10; i < 20; ++i) {
      EXPECT_EQ(resumed.step(i), losses[static_cast<std::size_t>(i)]) << i;
    }
    EXPECT_TRUE(resumed.weights() == straight.weights());
    EXPECT_TRUE(resumed.state() == straight.state());
    EXPECT_EQ(resumed.model.read_step_block().updates, 20);
  }
}

TEST_F(Checkpoint, InfoComesBack) {
  TinyRun run;
  run.begin();
  for (int i = 0; i < 3; ++i) run.step(i);
  CheckpointInfo info = info_of(run, 123456789012);
  info.train_config = "lr = 0.1\n# \"quoted\", ü\n";
  info.seeds = {{"rounding", UINT64_MAX}, {"shuffle", 0}};
  info.loader = {{"epoch", 3}, {"row", INT64_MAX}, {"low", INT64_MIN}};
  info.gemm_choices = "none";
  info.tokenizer_hash = "00ff";
  info.val_loss = 0.1;
  info.extra = {{"bad_steps", "2"}};
  CheckpointWriter writer = writer_of(run);
  writer.save(run.model.stream(), info);
  writer.wait();
  const CheckpointReader reader(checkpoint_folder(folder_.path(), info.step));
  const CheckpointInfo& back = reader.info();
  EXPECT_EQ(reader.dtype(), DType::kF32);
  EXPECT_EQ(back.step, info.step);
  EXPECT_EQ(back.model, info.model);
  EXPECT_EQ(back.train_config, info.train_config);
  EXPECT_EQ(back.seeds, info.seeds);
  EXPECT_EQ(back.loader, info.loader);
  EXPECT_EQ(back.updates, 3);
  EXPECT_EQ(back.gemm_choices, info.gemm_choices);
  EXPECT_EQ(back.tokenizer_hash, info.tokenizer_hash);
  EXPECT_EQ(back.optimizer, "adamw");
  EXPECT_EQ(back.world_size, 1);
  EXPECT_EQ(back.val_loss, info.val_loss);
  EXPECT_EQ(back.extra, info.extra);
  const StepGuard guard = run.optimizer.read_guard(run.model.stream());
  EXPECT_EQ(std::memcmp(&back.guard, &guard, sizeof guard), 0);
  EXPECT_EQ(back.guard.loss.count, 3);
}

TEST_F(Checkpoint, TheWriterReadsItsSnapshotOnly) {
  TinyRun run;
  run.begin();
  CheckpointWriter writer = writer_of(run);
  EXPECT_GT(writer.snapshot_bytes(), run.weights().size() * 3);
  const std::string weights = run.weights();
  writer.save(run.model.stream(), info_of(run, 1));
  for (int i = 0; i < 5; ++i) run.step(i);  // while it writes
  writer.save(run.model.stream(), info_of(run, 2));
  const std::string later = run.weights();
  CheckpointWriter moved = std::move(writer);
  moved.wait();
  TinyRun back;
  restore(back, checkpoint_folder(folder_.path(), 1));
  EXPECT_TRUE(back.weights() == weights);
  restore(back, checkpoint_folder(folder_.path(), 2));
  EXPECT_TRUE(back.weights() == later);
}

TEST_F(Checkpoint, FoldersOfARun) {
  EXPECT_FALSE(latest_checkpoint(folder_.path()));
  EXPECT_TRUE(list_checkpoints(folder_ / "nothing").empty());
  TinyRun run;
  run.begin();
  EXPECT_EQ(save(run, 9), folder_ / "checkpoints/step_00000009");
  save(run, 100);
  save(run, 123456789);
  const fs::path checkpoints = folder_ / "checkpoints";
  make_folders(checkpoints / "step_00000200");       // no manifest
  make_folders(checkpoints / ".new_step_00000300");  // unfinished
  fs::copy(checkpoints / "step_00000009", checkpoints / "step_9", fs::copy_options::recursive);
  fs::copy(checkpoints / "step_00000009", checkpoints / "other", fs::copy_options::recursive);
  const std::vector<fs::path> expected{checkpoints / "step_00000009", checkpoints / "step_00000100",
                                       checkpoints / "step_123456789"};
  EXPECT_EQ(list_checkpoints(folder_.path()), expected);
  EXPECT_EQ(latest_checkpoint(folder_.path()), expected[2]);
  remove_checkpoints_after(folder_.path(), 50);
  EXPECT_EQ(latest_checkpoint(folder_.path()), expected[0]);
  save(run, 10);
  EXPECT_FALSE(fs::exists(checkpoints / ".new_step_00000300"));
}

TEST_F(Checkpoint, TheSameStepIsReplaced) {
  TinyRun run;
  run.begin();
  save(run, 5);
  run.step(0);
  const fs::path folder = save(run, 5);
  TinyRun back;
  restore(back, folder);
  EXPECT_TRUE(back.weights() == run.weights());
  EXPECT_EQ(list_checkpoints(folder_.path()).size(), 1u);
  std::size_t entries = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "checkpoints")) {
    entries += entry.exists();
  }
  EXPECT_EQ(entries, 1u);
}

TEST_F(Checkpoint, PruningKeepsTheNewestAndTheBest) {
  TinyRun run;
  run.begin();
  CheckpointWriter writer = writer_of(run, 2);
  const double losses[] = {3.0, 2.0, 2.5, std::nan(""), 2.2, 2.1};
  for (int i = 0; i < 6; ++i) {
    CheckpointInfo info = info_of(run, i);
    info.val_loss = losses[i];
    writer.save(run.model.stream(), info);
    writer.wait();
  }
  const auto step = [&](int i) { return checkpoint_folder(folder_.path(), i); };
  EXPECT_EQ(list_checkpoints(folder_.path()), (std::vector{step(1), step(4), step(5)}));
  const auto best = best_checkpoint(folder_.path());
  ASSERT_TRUE(best);
  EXPECT_EQ(best->step, 1);
  EXPECT_EQ(best->val_loss, 2.0);
  EXPECT_EQ(best->folder, step(1));
  EXPECT_FALSE(CheckpointReader(step(5)).info().val_loss == std::nullopt);

  // A resumed run may write below the highest step: what it just wrote stays.
  CheckpointInfo info = info_of(run, 3);
  info.val_loss = 1.5;
  writer.save(run.model.stream(), info);
  writer.wait();
  EXPECT_EQ(list_checkpoints(folder_.path()), (std::vector{step(3), step(4), step(5)}));
  EXPECT_EQ(best_checkpoint(folder_.path())->step, 3);
  remove_checkpoints_after(folder_.path(), 2);
  EXPECT_FALSE(best_checkpoint(folder_.path()));

  write_text(folder_ / "checkpoints/best.json", "{\"step\":");
  expect_error(ErrorKind::kInput, "best.json", [&] { best_checkpoint(folder_.path()); });
}

TEST_F(Checkpoint, OtherPrecisions) {
  TinyRun low(DType::kBF16);
  low.begin();
  for (int i = 0; i < 3; ++i) low.step(i);
  const fs::path folder = save(low, 3);
  std::vector<float> masters;
  low.optimizer.visit_state([&](const StatePiece& piece) {
    if (piece.name == "master.wpe")
      masters = testing::read_values(low.model.stream(), piece.tensor);
  });
  TinyRun exact;
  restore(exact, folder);
  const auto wpe = [&] {
    return testing::read_values(exact.model.stream(), exact.model.parameters().value("wpe"));
  };
  EXPECT_TRUE(masters == wpe());
  const float next = exact.step(3);
  EXPECT_TRUE(std::isfinite(next));

  save(exact, 4);
  TinyRun lowered(DType::kBF16);
  restore(lowered, checkpoint_folder(folder_.path(), 4));
  std::vector<float> lowered_masters;
  lowered.optimizer.visit_state([&](const StatePiece& piece) {
    if (piece.name == "master.wpe") {
      lowered_masters = testing::read_values(lowered.model.stream(), piece.tensor);
    }
  });
  EXPECT_TRUE(lowered_masters == wpe());

  TinyRun alone(DType::kBF16, false);  // masters come from bf16 weights
  alone.begin();
  save(alone, 5);
  TinyRun with_masters(DType::kBF16);
  restore(with_masters, checkpoint_folder(folder_.path(), 5));
  EXPECT_TRUE(with_masters.weights() == alone.weights());
}

TEST_F(Checkpoint, PiecesInSeveralFiles) {
  TinyRun run;
  run.begin();
  run.step(0);
  const fs::path folder = save(run, 1);
  // The weights move into two files, each tensor cut at an odd place.
  Manifest manifest = manifest_from_json(read_text(folder / kManifestName), folder);
  std::vector<std::vector<SafetensorsSpec>> specs(2);
  SafetensorsReader whole(folder / "model.safetensors");
  const auto cut = [](const SafetensorsEntry& e) { return e.numel() / 3 + 1; };
  for (const SafetensorsEntry& e : whole.entries()) {
    specs[0].push_back({e.name, DType::kF32, {cut(e)}});
    specs[1].push_back({e.name, DType::kF32, {e.numel() - cut(e)}});
  }
  manifest.files.erase("model.safetensors");
  for (auto& [name, tensor] : manifest.weights) tensor.pieces.clear();
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string name = concat("part", i, ".safetensors");
    SafetensorsWriter writer(folder / name, specs[i]);
    for (const SafetensorsEntry& e : whole.entries()) {
      const std::int64_t begin = i == 0 ? 0 : cut(e);
      const std::int64_t count = i == 0 ? cut(e) : e.numel() - cut(e);
      std::vector<float> values(static_cast<std::size_t>(count));
      whole.read(e, begin, count, values.data());
      writer.write(e.name, values.data(), values.size() * sizeof(float));
      manifest.weights[e.name].pieces.push_back(
          {name, begin, begin + count, checksum64(values.data(), values.size() * sizeof(float))});
    }
    writer.commit();
    manifest.files[name] = {writer.file_bytes(), writer.header_checksum()};
  }
  fs::remove(folder / "model.safetensors");
  write_text(folder / kManifestName, to_json(manifest));
  verify_checkpoint(folder);
  TinyRun back;
  restore(back, folder);
  EXPECT_TRUE(back.weights() == run.weights());
}

TEST_F(Checkpoint, WeightsAlone) {
  TinyRun run;
  run.begin();
  run.step(0);
  const fs::path folder = save(run, 1);
  Transformer model(Device::open(), CheckpointReader(folder).info().model, {.training = false});
  model.allocate();
  CheckpointReader(folder).read_weights(model.stream(), model.parameters());
  const Tensor a = model.parameters().value("blocks.1.mlp.fc.weight");
  const Tensor b = run.model.parameters().value("blocks.1.mlp.fc.weight");
  EXPECT_TRUE(testing::read_bytes(model.stream(), a) == testing::read_bytes(run.model.stream(), b));
}

}  // namespace
}  // namespace llmc
