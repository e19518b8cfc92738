// Ranks compute with the same algorithms for matrix products, although these are timed.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "llmc/ops/linear.h"
#include "support/temp_folder.h"
#include "support/thread_ranks.h"
#include "train/tiny_run.h"

namespace llmc {
namespace {

using testing::TempFolder;

/// Products large enough to be timed, in one micro-step and in several.
TEST(RanksProducts, AreThoseThatRank0HasTimed) {
  const TempFolder folder;
  testing::write_tokens(folder / "train.bin", 20000, 512, 5);
  for (const std::int64_t micro_steps : {1, 2}) {
    TrainConfig config = testing::tiny_config();
    config.micro_batch = 8;
    config.seq_len = 128;
    config.tokens_per_step = 2 * micro_steps * config.micro_batch * config.seq_len;
    config.max_steps = 3;
    std::vector<std::string> choices(2);
    testing::run_thread_ranks(2, [&](Communicator& comm) {
      testing::TinyRun run(config, folder / "train.bin", DType::kBF16, &comm,
                           ModelConfig::gpt2(2, 8, 512, 128, 512));
      Trainer trainer(config, run.model, run.source, run.optimizer);
      trainer.run();
      choices[static_cast<std::size_t>(comm.rank())] = matmul_choices(run.model.stream());
    });
    EXPECT_NE(choices[0], "");
    EXPECT_EQ(choices[1], choices[0]) << micro_steps;
  }
}

}  // namespace
}  // namespace llmc
