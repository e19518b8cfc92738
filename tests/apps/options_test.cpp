#include "cli/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "llmc/core/error.h"

namespace llmc::cli {
namespace {

struct Parsed {
  std::string part = "all";
  TrainConfig config;

  explicit Parsed(std::vector<const char*> arguments) {
    config.precision = "bf16";
    config.seq_len = 7;
    OptionParser parser("program", "For a test.");
    parser.add("part", part, "What to do.", {"all", "first", "last"});
    parser.add_config_options(config, {"precision", "seq_len", "master_weights"});
    arguments.insert(arguments.begin(), "program");
    EXPECT_TRUE(parser.parse(static_cast<int>(arguments.size()), arguments.data()));
  }
};

std::string refusal(const std::vector<const char*>& arguments) {
  try {
    Parsed parsed(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST(Options, KeepTheirDefaultsWhereNoneIsGiven) {
  const Parsed parsed({});
  EXPECT_EQ(parsed.part, "all");
  EXPECT_EQ(parsed.config.precision, "bf16");
  EXPECT_EQ(parsed.config.seq_len, 7);
}

TEST(Options, SetAConfiguration) {
  const Parsed parsed(
      {"--precision", "tf32", "--seq_len=9", "--master-weights=false", "--part", "last"});
  EXPECT_EQ(parsed.part, "last");
  EXPECT_EQ(parsed.config.precision, "tf32");
  EXPECT_EQ(parsed.config.seq_len, 9);
  EXPECT_FALSE(parsed.config.master_weights);
}

TEST(Options, RefuseWhatIsNoChoice) {
  EXPECT_NE(refusal({"--part", "middle"}).find("expected one of all, first, last, got 'middle'"),
            std::string::npos);
  EXPECT_NE(refusal({"--precision", "fp8"}).find("expected one of fp32, tf32, bf16, got 'fp8'"),
            std::string::npos);
  EXPECT_NE(refusal({"--seq-len", "-1"}).find("seq_len"), std::string::npos);
  EXPECT_NE(refusal({"--lr", "1"}).find("expected the name of an option, got '--lr'"),
            std::string::npos);
}

}  // namespace
}  // namespace llmc::cli
