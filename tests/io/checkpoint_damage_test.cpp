// What a checkpoint must survive or refuse: crashes, full disks, damaged and foreign files.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "io/manifest.h"
#include "io/tiny_run.h"
#include "llmc/core/error.h"
#include "llmc/core/log.h"
#include "llmc/io/checkpoint.h"
#include "support/file_size_limit.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::FileSizeLimit;
using testing::put_file;
using testing::TinyRun;

class CheckpointDamage : public ::testing::Test {
 protected:
  void SetUp() override { run_.begin(); }

  CheckpointInfo info(std::int64_t step) {
    CheckpointInfo i;
    i.step = step;
    i.model = run_.model.config();
    return i;
  }
  CheckpointWriter writer() {
    return {folder_.path(), run_.model.parameters(), run_.optimizer, {}};
  }
  fs::path save(std::int64_t step) {
    CheckpointWriter w = writer();
    w.save(run_.model.stream(), info(step));
    w.wait();
    return checkpoint_folder(folder_.path(), step);
  }
  /// Names in the checkpoints folder, temporary ones too.
  std::vector<std::string> entries() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / "checkpoints")) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  /// Whether a child process may compute on the device of this one.
  static bool can_fork() { return backend_name() == "cpu"; }
  static constexpr const char* kCannotFork =
      "a GPU cannot be used after fork; files are written the same way on every backend";
  /// Runs in another process and returns how it ended, as waitpid says.
  template <class Body>
  static int in_child(Body body, int kill_after_us = 0) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      body();
      ::_exit(0);
    }
    if (kill_after_us > 0) {
      ::usleep(static_cast<useconds_t>(kill_after_us));
      ::kill(pid, SIGKILL);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    return status;
  }

  testing::TempFolder folder_;
  TinyRun run_;
};

TEST_F(CheckpointDamage, AFullDiskLeavesNoCheckpoint) {
  const fs::path first = save(1);
  const std::uint64_t weights = fs::file_size(first / "model.safetensors");
  const std::uint64_t state = fs::file_size(first / "optimizer.safetensors");
  auto* const before = ::signal(SIGXFSZ, SIG_IGN);
  for (const std::uint64_t limit : {std::uint64_t{0}, weights / 2, weights, state - 1}) {
    CheckpointWriter w = writer();
    {
      const FileSizeLimit full(limit);
      w.save(run_.model.stream(), info(2));
      expect_error(ErrorKind::kIo, "safetensors", [&] { w.wait(); });
    }
    EXPECT_EQ(entries(), std::vector<std::string>{"step_00000001"});
    w.wait();  // was told once
  }
  {
    CheckpointWriter w = writer();
    {
      const FileSizeLimit full(0);
      w.save(run_.model.stream(), info(2));
      expect_error(ErrorKind::kIo, "safetensors",
                   [&] { w.save(run_.model.stream(), info(3)); });  // the next call is told
      w.save(run_.model.stream(), info(3));
      expect_error(ErrorKind::kIo, "safetensors", [&] {
        for (int i = 0; i < 10000; ++i) {
          w.check();  // so does not take a wait
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
    }
    w.save(run_.model.stream(), info(4));
    w.wait();
  }
  ::signal(SIGXFSZ, before);
  verify_checkpoint(checkpoint_folder(folder_.path(), 4));

  // An error that nobody asked for is logged.
  std::string logged;
  set_log_sink([&](LogLevel, std::string_view message) { logged = message; });
  auto* const again = ::signal(SIGXFSZ, SIG_IGN);
  {
    CheckpointWriter w = writer();
    const FileSizeLimit full(0);
    w.save(run_.model.stream(), info(5));
    CheckpointWriter gone = std::move(w);
  }
  ::signal(SIGXFSZ, again);
  set_log_sink({});
  EXPECT_NE(logged.find("cannot write"), std::string::npos) << logged;
}

TEST_F(CheckpointDamage, AProcessThatDiesWhileWritingLeavesTheOldCheckpoint) {
  if (!can_fork()) GTEST_SKIP() << kCannotFork;
  const fs::path first = save(1);
  const std::uint64_t weights = fs::file_size(first / "model.safetensors");
  const std::uint64_t state = fs::file_size(first / "optimizer.safetensors");
  for (const std::uint64_t limit : {std::uint64_t{1}, weights - 1, weights, state - 1}) {
    for (const std::int64_t step : {1, 2}) {  // over the old one, and beside it
      const int status = in_child([&] {
        const FileSizeLimit dies(limit);  // the signal of the limit kills
        save(step);
      });
      EXPECT_TRUE(WIFSIGNALED(status));
      EXPECT_EQ(list_checkpoints(folder_.path()), std::vector{first});
      verify_checkpoint(first);
    }
  }
  save(2);
  EXPECT_EQ(entries().size(), 2u);  // what the dead left is gone
}

TEST_F(CheckpointDamage, AProcessKilledAnyTimeLeavesWholeCheckpoints) {
  if (!can_fork()) GTEST_SKIP() << kCannotFork;
  for (const std::int64_t step : {0, 1, 2}) save(step);
  Mt19937 rng(11);
  for (int round = 0; round < 25; ++round) {
    const int status = in_child(
        [&] {
          CheckpointWriter w = writer();
          for (std::int64_t step = 0;; ++step) w.save(run_.model.stream(), info(step % 4));
        },
        500 + static_cast<int>(rng.next_u32() % 60'000));
    EXPECT_TRUE(WIFSIGNALED(status));
    const std::vector<fs::path> folders = list_checkpoints(folder_.path());
    // At most one is missing, and that only where the file system cannot swap names.
    EXPECT_GE(folders.size(), 2u);
    for (const fs::path& folder : folders) verify_checkpoint(folder);
    for (const std::string& name : entries()) {
      EXPECT_TRUE(name.starts_with(".") ||
                  fs::exists(folder_ / "checkpoints" / name / kManifestName))
          << name;
    }
  }
}

TEST_F(CheckpointDamage, EveryDamagedFileIsNoticed) {
  const fs::path folder = save(1);
  Mt19937 rng(3);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    const std::string good = read_text(folder / name);
    const auto noticed = [&](const std::string& bytes) {
      put_file(folder / name, bytes);
      try {
        verify_checkpoint(folder);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
        return true;
      }
      return false;
    };
    for (int round = 0; round < 60; ++round) {
      std::string flipped = good;
      char& byte = flipped[rng.next_u32() % good.size()];
      const char before = byte;
      byte = static_cast<char>(byte ^ (1 << (rng.next_u32() % 8)));
      if (before == 'e' && byte == 'E') continue;  // the same number in JSON
      EXPECT_TRUE(noticed(flipped)) << name << " round " << round;
      EXPECT_TRUE(noticed(good.substr(0, rng.next_u32() % good.size())));
    }
    EXPECT_TRUE(noticed(good + "x"));
    EXPECT_TRUE(noticed(""));
    fs::remove(folder / name);
    EXPECT_THROW(verify_checkpoint(folder), Error);
    EXPECT_FALSE(noticed(good));
  }
}

TEST_F(CheckpointDamage, WeightsDoNotNeedTheOptimizersFile) {
  const fs::path folder = save(1);
  const std::string weights = run_.weights();
  fs::remove(folder / "optimizer.safetensors");
  run_.begin(2);
  ASSERT_NE(run_.weights(), weights);
  CheckpointReader reader(folder);
  reader.read_weights(run_.model.stream(), run_.model.parameters());
  EXPECT_EQ(run_.weights(), weights);
  const std::string missing = "expected the file optimizer.safetensors, got none";
  expect_error(ErrorKind::kInput, missing, [&] { verify_checkpoint(folder); });
  expect_error(ErrorKind::kInput, missing, [&] {
    reader.read_all(run_.model.stream(), run_.model.parameters(), run_.optimizer,
                    run_.model.step_block());
  });
  fs::remove(folder / "model.safetensors");
  expect_error(ErrorKind::kInput, "expected the file model.safetensors, got none",
               [&] { CheckpointReader incomplete(folder); });
}

TEST_F(CheckpointDamage, WithoutMastersTheirWeightsAreRead) {
  TinyRun bf16(DType::kBF16);
  bf16.begin();
  bf16.step(0);  // from here on masters and weights differ
  CheckpointWriter w{folder_.path(), bf16.model.parameters(), bf16.optimizer, {}};
  w.save(bf16.model.stream(), info(1));
  w.wait();
  const fs::path folder = checkpoint_folder(folder_.path(), 1);
  const auto read = [&] {
    CheckpointReader(folder).read_weights(run_.model.stream(), run_.model.parameters());
    return run_.weights();
  };
  const std::string masters = read();
  fs::remove(folder / "optimizer.safetensors");
  EXPECT_NE(read(), masters);
  EXPECT_EQ(CheckpointReader(folder).dtype(), DType::kBF16);
}

TEST_F(CheckpointDamage, DamageIsNoticedWhileLoading) {
  const fs::path folder = save(1);
  std::string bytes = read_text(folder / "optimizer.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put_file(folder / "optimizer.safetensors", bytes);
  CheckpointReader reader(folder);
  reader.read_weights(run_.model.stream(), run_.model.parameters());
  expect_error(ErrorKind::kInput, "checksum differs", [&] {
    reader.read_all(run_.model.stream(), run_.model.parameters(), run_.optimizer,
                    run_.model.step_block());
  });
}

TEST_F(CheckpointDamage, TheCheckpointBeforeADamagedOneIsNamed) {
  const fs::path before = save(9);
  const fs::path folder = save(10);
  const std::string advice = "use another checkpoint, such as " + before.string();
  put_file(folder / "manifest.json", "{");
  expect_error(ErrorKind::kInput, advice, [&] { verify_checkpoint(folder); });
  const fs::path third = save(11);
  std::string bytes = read_text(third / "optimizer.safetensors");
  bytes[12] ^= 4;  // in the header, which is then no longer what a reader takes
  put_file(third / "optimizer.safetensors", bytes);
  expect_error(ErrorKind::kInput, "use another checkpoint, such as " + folder.string(),
               [&] { verify_checkpoint(third); });
  put_file(before / "manifest.json", "{");
  expect_error(ErrorKind::kInput, "use another checkpoint", [&] { verify_checkpoint(before); });
}

TEST_F(CheckpointDamage, WrongManifestsAreRefused) {
  const fs::path folder = save(1);
  const Manifest good = manifest_from_json(read_text(folder / kManifestName), folder);
  const auto refused = [&](const std::string& part, auto change) {
    Manifest changed = good;
    change(changed);
    put_file(folder / kManifestName, to_json(changed));
    expect_error(ErrorKind::kInput, part, [&] {
      CheckpointReader(folder).read_all(run_.model.stream(), run_.model.parameters(),
                                        run_.optimizer, run_.model.step_block());
    });
  };
  refused("expected 28 weights, got 27", [](Manifest& m) { m.weights.erase("wpe"); });
  refused("under the name 'other'", [](Manifest& m) {
    auto node = m.weights.extract("wpe");
    node.key() = "other";
    m.weights.insert(std::move(node));
  });
  refused("expected optimizer state 'm.wpe'", [](Manifest& m) { m.state.erase("m.wpe"); });
  refused("expected shape (5, 6), got (6, 5)", [](Manifest& m) {
    m.weights.at("wpe").shape = {6, 5};
  });
  refused("pieces of 36 elements, got 30", [](Manifest& m) { m.weights.at("wpe").shape = {6, 6}; });
  refused("from element 0 on", [](Manifest& m) { m.weights.at("wpe").pieces[0].begin = 1; });
  refused("from element 0 on", [](Manifest& m) { m.weights.at("wpe").pieces[0].end = 0; });
  refused("expected 30 elements of bf16",
          [](Manifest& m) { m.weights.at("wpe").dtype = DType::kBF16; });
  refused("is not listed", [](Manifest& m) { m.weights.at("wpe").pieces[0].file = "gone"; });
  refused("expected the file gone", [](Manifest& m) { m.files["gone"] = {}; });
  refused("plain file name", [](Manifest& m) { m.files["../x"] = {}; });
  refused("bytes, got", [](Manifest& m) { ++m.files.at("model.safetensors").bytes; });
  refused("checksum of its header",
          [](Manifest& m) { ++m.files.at("model.safetensors").header_checksum; });
  refused("checksum differs", [](Manifest& m) { ++m.weights.at("wpe").pieces[0].checksum; });

  const std::string text = to_json(good);
  const auto refused_text = [&](const std::string& part, const std::string& from,
                                const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    put_file(folder / kManifestName, changed);
    expect_error(ErrorKind::kInput, part, [&] { CheckpointReader reader(folder); });
  };
  refused_text("written by a newer llmc", "\"version\": 1", "\"version\": 2");
  refused_text("this is no checkpoint", "llmc checkpoint", "another format");
  refused_text("its checksum differs", "\"step\": 1", "\"step\": 2");
  refused_text("expected JSON", "{", "{{");
}

TEST_F(CheckpointDamage, AnotherModelOrOptimizerIsRefused) {
  const fs::path folder = save(1);
  const auto refused = [&](ErrorKind kind, const std::string& part, TinyRun& other) {
    expect_error(kind, part, [&] {
      CheckpointReader(folder).read_all(other.model.stream(), other.model.parameters(),
                                        other.optimizer, other.model.step_block());
    });
  };
  TinyRun wider(DType::kF32, true, ModelConfig::gpt2(2, 2, 8, 5, 11));
  refused(ErrorKind::kInput, "expected shape (128, 8), got (128, 6)", wider);
  TinyRun shallower(DType::kF32, true, ModelConfig::gpt2(1, 2, 6, 5, 11));
  refused(ErrorKind::kInput, "expected 16 weights, got 28", shallower);

  ParameterSet strange(DType::kF32);
  strange.begin_bucket("all");
  for (int i = 0; i < 28; ++i) {
    strange.declare(concat("p", i), {2}, Initialiser::zeros(), OptimizerGroup::kDecay);
  }
  Arena arena;
  strange.plan(arena);
  arena.allocate(run_.model.stream().device());
  strange.bind(arena);
  expect_error(ErrorKind::kInput, "expected a weight 'p0'",
               [&] { CheckpointReader(folder).read_weights(run_.model.stream(), strange); });

  class Plain : public Optimizer {
   public:
    explicit Plain(const ParameterSet& parameters) : Optimizer(parameters, {}) {}
    std::string_view name() const override { return "plain"; }

   private:
    void update(Stream&, std::span<const UpdateRange>, const StepBlock*) override {}
  };
  Plain plain(run_.model.parameters());
  plain.allocate(run_.model.stream().device());
  expect_error(ErrorKind::kConfig, "expected the optimizer adamw, got plain", [&] {
    CheckpointReader(folder).read_all(run_.model.stream(), run_.model.parameters(), plain,
                                      run_.model.step_block());
  });
  expect_error(ErrorKind::kConfig, "keep_checkpoints", [&] {
    CheckpointWriter(folder_.path(), run_.model.parameters(), run_.optimizer, {.keep = -1});
  });
}

}  // namespace
}  // namespace llmc
