#include "llmc/train/train_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/train/training_run.h"

namespace llmc {
namespace {

// The message of the config error that `action` throws; empty if it throws none.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig) << error.what();
    return error.what();
  }
  return {};
}

std::string set_error(std::string_view key, std::string_view text) {
  TrainConfig config;
  return error_of([&] { set_option(config, find_option(key), text); });
}

std::string parse_error(std::string_view text) {
  return error_of([&] { parse_config(text, "my.toml"); });
}

void expect_contains(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
  }
}

TEST(ConfigTable, KeysAreUniqueAndDefaultsAreValid) {
  const TrainConfig defaults;
  for (const ConfigOption& option : config_options()) {
    EXPECT_EQ(&find_option(option.key), &option);
    EXPECT_FALSE(option.help.empty()) << option.key;
    TrainConfig config;
    EXPECT_NO_THROW(set_option(config, option, option_text(defaults, option))) << option.key;
    EXPECT_EQ(config, defaults) << option.key;
  }
}

TEST(ConfigTable, EitherSpelling) {
  EXPECT_EQ(&find_option("micro-batch"), &find_option("micro_batch"));
  EXPECT_EQ(find_option("tokens-per_step").key, "tokens_per_step");
}

TEST(ConfigTable, TypoSuggestsTheNearestKey) {
  expect_contains(error_of([] { find_option("micro-bach"); }), {"micro-bach", "micro_batch?"});
  expect_contains(error_of([] { find_option("warmup"); }), {"'warmup'"});
  expect_contains(error_of([] { find_option("learningrate"); }), {"configuration.md"});
  expect_contains(error_of([] { find_option("betal"); }), {"beta"});
  expect_contains(error_of([] { find_option(""); }), {"expected the name"});
}

TEST(ConfigValues, BadNumbersNameTheKey) {
  expect_contains(set_error("micro_batch", "12x"), {"micro_batch", "integer", "'12x'"});
  for (const char* text : {"", " 1", "1 ", "1.0", "1e3", "0x10", "--1", "+-1", "1__0", "_1", "1_",
                           "99999999999999999999", "true"}) {
    EXPECT_NE(set_error("micro_batch", text), "") << text;
  }
  for (const char* text : {"", "1e", "nan", "inf", "-inf", "1e999", "3e-4x", "0,1", ".", "one"}) {
    expect_contains(set_error("lr", text), {"lr: expected a number"});
  }
  for (const char* text : {"1", "yes", "True", ""}) {
    expect_contains(set_error("shuffle", text), {"shuffle", "true or false"});
  }
}

TEST(ConfigValues, OutOfRangeStatesTheRange) {
  expect_contains(set_error("micro_batch", "0"), {"micro_batch", "at least 1", "got 0"});
  expect_contains(set_error("val_every", "-1"), {"val_every", "at least 0"});
  expect_contains(set_error("beta2", "1"), {"beta2", "at least 0 and below 1"});
  expect_contains(set_error("eps", "0"), {"eps", "above 0 and at most 1"});
  expect_contains(set_error("final_lr_fraction", "1.5"), {"at most 1"});
  expect_contains(set_error("schedule", "cosin"), {"schedule", "cosine", "wsd", "'cosin'"});
  expect_contains(set_error("device", "tpu"), {"device", "cpu"});
  EXPECT_EQ(set_error("val_every", "0"), "");
  EXPECT_EQ(set_error("beta2", "0"), "");
}

TEST(ConfigValues, GoodNumbers) {
  TrainConfig config;
  set_option(config, find_option("tokens_per_step"), "524_288");
  EXPECT_EQ(config.tokens_per_step, 524288);
  set_option(config, find_option("lr"), "6e-4");
  EXPECT_EQ(config.lr, 6e-4);
  set_option(config, find_option("lr"), "1");
  EXPECT_EQ(config.lr, 1.0);
  set_option(config, find_option("max_steps"), "+7");
  EXPECT_EQ(config.max_steps, 7);
}

TEST(ConfigText, ParsesFlatToml) {
  const auto settings = parse_config(
      "# a run\n\nlr = 6e-4 # peak\n  micro-batch=8\r\n"
      "train_data = \"a \\\"b\\\" #c \\u00e9\"\nval_data = 'raw \\n'\nshuffle = false",
      "my.toml");
  TrainConfig config;
  apply_settings(config, settings);
  EXPECT_EQ(config.lr, 6e-4);
  EXPECT_EQ(config.micro_batch, 8);
  EXPECT_EQ(config.train_data, "a \"b\" #c \xc3\xa9");
  EXPECT_EQ(config.val_data, "raw \\n");
  EXPECT_FALSE(config.shuffle);
  ASSERT_EQ(settings.size(), 5u);
  EXPECT_EQ(settings[1].origin, "my.toml:4");
}

TEST(ConfigText, RefusalsStateTheLine) {
  expect_contains(parse_error("lr = 1\n[optimizer]\n"), {"my.toml:2", "section"});
  expect_contains(parse_error("lrr = 1"), {"my.toml:1", "'lrr'", "did you mean lr?"});
  expect_contains(parse_error("lr = 1\nlr = 2"), {"my.toml:2", "lr: set twice", "my.toml:1"});
  expect_contains(parse_error("micro_batch=1\n\nmicro-batch=1"), {"my.toml:3", "set twice"});
  expect_contains(parse_error("lr = 12x"), {"my.toml:1", "lr", "'12x'"});
  expect_contains(parse_error("lr = \"1\""), {"lr", "without quotes"});
  expect_contains(parse_error("lr ="), {"lr", "number"});
  expect_contains(parse_error("lr"), {"my.toml:1", "key = value"});
  expect_contains(parse_error("= 3"), {"key = value"});
  expect_contains(parse_error("a.b = 3"), {"key = value"});
  expect_contains(parse_error("schedule = cosine"), {"schedule", "quotes"});
  expect_contains(parse_error("schedule = \"cosine"), {"schedule", "closing quote"});
  expect_contains(parse_error("schedule = \"cosine\" x"), {"schedule", "end of the line"});
  expect_contains(parse_error("train_data = \"\\x\""), {"train_data", "escape"});
  expect_contains(parse_error("train_data = \"\\u12\""), {"train_data", "escape"});
  expect_contains(parse_error("train_data = [\"a\"]"), {"train_data", "quotes"});
}

TEST(ConfigText, AByteOrderMarkIsSkipped) {
  const auto settings = parse_config("\xef\xbb\xbfseed = 3\n", "c.toml");
  ASSERT_EQ(settings.size(), 1u);
  EXPECT_EQ(settings[0].text, "3");
}

TEST(ConfigText, MissingFileIsAConfigError) {
  expect_contains(error_of([] { read_config("/no/such/run.toml"); }), {"/no/such/run.toml"});
}

TEST(ConfigText, RoundTripKeepsEveryBit) {
  std::mt19937_64 random(7);
  const auto uniform = [&] { return std::uniform_real_distribution<double>(0.01, 0.99)(random); };
  for (int round = 0; round < 20; ++round) {
    TrainConfig config;
    config.lr = uniform() * 1e-3;
    config.beta1 = uniform();
    config.eps = uniform() * 1e-9;
    config.weight_decay = 1.0 / 3.0;
    config.seed = static_cast<std::int64_t>(random() % 4294967296);
    config.shuffle = round % 2 == 0;
    config.max_steps = 9000000000000000;
    config.out_dir = "a\"b\\c\n\t#\x01 \xc3\xa9";
    TrainConfig back;
    apply_settings(back, parse_config(config_text(config), "config.toml"));
    EXPECT_EQ(back, config);
  }
}

TEST(ConfigText, ActionsAreNotRecorded) {
  TrainConfig config;
  config.resume = "auto";
  config.overwrite = true;
  config.dry_run = true;
  TrainConfig back;
  apply_settings(back, parse_config(config_text(config), "config.toml"));
  EXPECT_EQ(back, TrainConfig{});
}

TEST(ConfigText, RandomBytesNeverCrash) {
  std::mt19937 random(11);
  const std::string alphabet = "lr=1.e-\"'\\#[]\n \tschedule_micro_batch\xff\x00u";
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    const auto length = random() % 40;
    for (unsigned i = 0; i < length; ++i) text += alphabet[random() % alphabet.size()];
    parse_error(text);
  }
}

TEST(ConfigPage, MatchesTheCommittedPage) {
  EXPECT_EQ(config_page(), read_text(LLMC_SOURCE_DIR "/docs/configuration.md"))
      << "refresh it: train --print-options > docs/configuration.md";
}

TEST(StartUpOptions, EveryKeyArrives) {
  const auto settings = parse_config(
      "comm_init = \"tcp\"\ncomm_address = \"head\"\ncomm_port = 7\ncomm_rank = 2\n"
      "comm_size = 3\ncomm_file = \"meet\"\ncomm_token = \"word\"\ncomm_deadline = 1.5\n",
      "a.toml");
  TrainConfig config;
  apply_settings(config, settings);
  const StartUp start = start_up_options(config);
  EXPECT_EQ(start.method, "tcp");
  EXPECT_EQ(start.address, "head");
  EXPECT_EQ(start.port, 7);
  EXPECT_EQ(start.rank, 2);
  EXPECT_EQ(start.size, 3);
  EXPECT_EQ(start.file, "meet");
  EXPECT_EQ(start.token, "word");
  EXPECT_EQ(start.deadline_s, 1.5);
  EXPECT_EQ(config_text(config), config_text({}));  // none is recorded
}

}  // namespace
}  // namespace llmc
