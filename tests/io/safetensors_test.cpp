#include "llmc/io/safetensors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/rng.h"
#include "support/temp_folder.h"
#include "support/test_tensor.h"

namespace llmc {
namespace {

std::string with_length(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), sizeof length);
  return text + header + data;
}

class Safetensors : public ::testing::Test {
 protected:
  testing::TempFolder folder_;
  std::filesystem::path path_ = folder_.path() / "a.safetensors";

  /// The message of the error that reading these bytes gives; empty if there is none.
  std::string error_of(const std::string& bytes) {
    std::filesystem::remove(path_);
    AppendFile(path_).append(bytes);  // not synced, so quick
    try {
      SafetensorsReader reader(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return error.what();
    }
    return "";
  }
};

TEST_F(Safetensors, GoldenFileByHand) {
  SafetensorsReader reader(std::filesystem::path(LLMC_GOLDEN_DIR) / "tiny_gpt2_a.safetensors");
  EXPECT_EQ(reader.metadata().at("n_layer"), "2");
  EXPECT_EQ(reader.metadata().at("n_embd"), "39");
  const SafetensorsEntry& wpe = reader.at("param.wpe");
  EXPECT_EQ(wpe.shape(), (Shape{24, 39}));
  EXPECT_EQ(wpe.dtype, DType::kF32);
  EXPECT_EQ(reader.values<std::int32_t>("tokens").at(1), 96);
  EXPECT_EQ(reader.values<float>("loss").size(), 1u);
  EXPECT_GT(reader.values<float>("loss")[0], 1.0f);
  EXPECT_EQ(reader.find("nothing"), nullptr);
  EXPECT_THROW(reader.at("nothing"), Error);
  EXPECT_THROW(reader.values<float>("tokens"), Error);
}

TEST_F(Safetensors, WrittenTensorsComeBackBitForBit) {
  Mt19937 rng(3);
  std::vector<float> f(35);
  for (auto& v : f) v = std::bit_cast<float>(rng.next_u32());  // any bits, NaN too
  std::vector<bf16> h(7);
  for (auto& v : h) v.bits = static_cast<std::uint16_t>(rng.next_u32());
  std::vector<std::int32_t> n{-1, 5, 1 << 30};
  std::vector<std::uint8_t> bytes{1, 2, 255};
  {
    SafetensorsWriter writer(path_,
                             {{"bytes", DType::kU8, {3}},
                              {"h", DType::kBF16, {7}},
                              {"f", DType::kF32, {5, 7}},
                              {"none", DType::kF32, {0, 4}},
                              {"n", DType::kI32, {3}}},
                             {{"note", "quote \" and ü"}});
    writer.write("h", h.data(), 14);
    writer.write("f", f.data(), 20);  // in pieces, and not in file order
    writer.write("bytes", bytes.data(), 3);
    writer.write("n", n.data(), 12);
    writer.write("f", f.data() + 5, 120);
    writer.commit();
    EXPECT_EQ(writer.file_bytes(), std::filesystem::file_size(path_));
    EXPECT_EQ(writer.header_checksum(), SafetensorsReader(path_).header_checksum());
  }
  SafetensorsReader reader(path_);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.metadata().at("note"), "quote \" and ü");
  EXPECT_EQ(std::memcmp(reader.values<float>("f").data(), f.data(), 140), 0);
  EXPECT_EQ(std::memcmp(reader.values<bf16>("h").data(), h.data(), 14), 0);
  EXPECT_EQ(reader.values<std::int32_t>("n"), n);
  EXPECT_EQ(reader.values<std::uint8_t>("bytes"), bytes);
  EXPECT_TRUE(reader.values<float>("none").empty());
  EXPECT_EQ(reader.at("none").shape(), (Shape{0, 4}));
  std::int32_t last = 0;
  reader.read(reader.at("n"), 2, 1, &last);
  EXPECT_EQ(last, 1 << 30);
  EXPECT_THROW(reader.read(reader.at("n"), 2, 2, &last), Error);
  for (const SafetensorsEntry& entry : reader.entries()) {
    EXPECT_EQ(entry.offset % size_of(*entry.dtype), 0u) << entry.name;
  }
  EXPECT_EQ(reader.entries().front().offset % 8, 0u);
}

TEST_F(Safetensors, TensorsOnADevice) {
  Stream stream(Device::open());
  testing::Values values(3'000'000);  // more than one staged piece
  std::iota(values.begin(), values.end(), 0.0);
  const testing::TestTensor src(stream, DType::kF32, {3, 1'000'000}, values);
  SafetensorsWriter writer(path_, {{"x", DType::kF32, {3, 1'000'000}}});
  EXPECT_THROW(writer.write(stream, "x", src->rows(0, 1)), Error);
  writer.write(stream, "x", src);
  writer.commit();
  const testing::TestTensor back(stream, DType::kF32, {3, 1'000'000});
  SafetensorsReader reader(path_);
  reader.read(stream, back, "x");
  EXPECT_EQ(back.values(), values);
  EXPECT_THROW(reader.read(stream, back->view({1'000'000, 3}), "x"), Error);
  const Tensor integers(back->raw(), DType::kI32, {3, 1'000'000});
  EXPECT_THROW(reader.read(stream, integers, "x"), Error);
}

TEST_F(Safetensors, WriterRefusesWrongUse) {
  EXPECT_THROW(SafetensorsWriter(path_, {{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}}), Error);
  EXPECT_THROW(SafetensorsWriter(path_, {{"__metadata__", DType::kF32, {1}}}), Error);
  EXPECT_THROW(SafetensorsWriter(path_, {{"\xff", DType::kF32, {1}}}), Error);
  SafetensorsWriter writer(path_, {{"a", DType::kF32, {2}}});
  const float values[3] = {1, 2, 3};
  EXPECT_THROW(writer.write("b", values, 4), Error);
  EXPECT_THROW(writer.write("a", values, 12), Error);
  writer.write("a", values, 4);
  EXPECT_THROW(writer.commit(), Error);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(Safetensors, WrongHeadersAreRefused) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string data(8, 'x');
  EXPECT_EQ(error_of(with_length(good, data)), "");
  EXPECT_EQ(error_of(with_length("{}")), "");
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "at least 8 bytes"},
      {"1234567", "at least 8 bytes"},
      {with_length(good, data + "y"), "end at byte"},
      {with_length(good, data.substr(1)), "truncated"},
      {with_length("[]"), "JSON object"},
      {with_length("{"), "syntax error"},
      {with_length("{\"\xff\":1}"), "syntax error"},
      {with_length(R"({"a":1})"), "expected dtype, shape and data_offsets"},
      {with_length(one(R"("F31")", "[2]", "[0,8]"), data), "dtype is not known"},
      {with_length(one("3", "[2]", "[0,8]"), data), "dtype is not known"},
      {with_length(one(R"("F32")", "2", "[0,8]"), data), "expected a list"},
      {with_length(one(R"("F32")", "[-2]", "[0,8]"), data), "whole numbers"},
      {with_length(one(R"("F32")", "[2.0]", "[0,8]"), data), "whole numbers"},
      {with_length(one(R"("F32")", "[18446744073709551615]", "[0,8]"), data), "whole numbers"},
      {with_length(one(R"("F32")", "[4294967296,4294967296]", "[0,8]"), data), "too many"},
      {with_length(one(R"("F32")", "[2]", "[0]"), data), "two data_offsets"},
      {with_length(one(R"("F32")", "[2]", "[8,0]"), data), "bytes apart"},
      {with_length(one(R"("F32")", "[2]", "[0,4]"), data), "bytes apart"},
      {with_length(one(R"("F32")", "[2]", "[4,12]"), data), "truncated"},
      {with_length(one(R"("U8")", "[7]", "[1,8]"), data), "hole or an overlap"},
      {with_length(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                   R"("b":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})",
                   data),
       "hole or an overlap"},
      {with_length(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                   R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                   data),
       "occurs twice"},
      {with_length(R"({"__metadata__":{"x":1}})"), "to be a string"},
      {with_length(R"({"__metadata__":[]})"), "to be an object"},
      {with_length("{\"a\":" + std::string(100'000, '[')), "levels deep"},
      {std::string(8, '\xff') + good, "header of at most"},
  };
  for (const auto& [bytes, expected] : cases) {
    const std::string message = error_of(bytes);
    EXPECT_NE(message.find(expected), std::string::npos) << "got: " << message;
    EXPECT_NE(message.find("a.safetensors"), std::string::npos);
  }
}

TEST_F(Safetensors, EveryTruncationIsRefused) {
  const std::string whole =
      with_length(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, 'x'));
  for (std::size_t n = 0; n < whole.size(); ++n) EXPECT_NE(error_of(whole.substr(0, n)), "") << n;
}

TEST_F(Safetensors, RandomBytesAreRefused) {
  Mt19937 rng(7);
  const std::string whole =
      with_length(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, 'x'));
  for (int round = 0; round < 300; ++round) {
    std::string bytes(rng.next_u32() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(rng.next_u32());
    EXPECT_NE(error_of(bytes), "");
    std::string damaged = whole;
    damaged[rng.next_u32() % whole.size()] = static_cast<char>(rng.next_u32());
    error_of(damaged);  // no crash; some damage is a valid file
  }
}

}  // namespace
}  // namespace llmc
