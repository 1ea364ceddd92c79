// The low-bit codes and records of the golden files, bit for bit.
#include <filesystem>
#include <map>

#include "quant/record.h"
#include "quant/reference.h"
#include "support/fixtures.h"

namespace sluice::quant {
namespace {

std::map<std::string, test::Fixture> files_with(const std::string& tensor) {
  std::map<std::string, test::Fixture> out;
  for (const auto& entry : std::filesystem::directory_iterator(SLUICE_TEST_DATA "/kernels")) {
    if (entry.path().extension() != ".safetensors") continue;
    auto file = test::Fixture::load(entry.path());
    if (file.has(tensor)) out.emplace(entry.path().filename().string(), std::move(file));
  }
  return out;
}

Format low_format(const test::Fixture& file, const std::string& key) {
  return file.metadata().at(key) == "3" ? Format::kQ3 : Format::kQ2;
}

TEST(Golden, CodesOfEveryFile) {
  const auto files = files_with("in_low");
  EXPECT_EQ(files.size(), 6U);
  for (const auto& [name, file] : files) {
    const Format format = low_format(file, "bits");
    const auto& q4 = file.find("in_codes_q4")->bytes;
    const auto& golden = file.find("in_low")->bytes;
    std::vector<std::byte> low(golden.size());
    truncate_codes(format, q4, low);
    EXPECT_EQ(low, golden) << name;

    std::vector<std::uint8_t> codes(q4.size() * 2);
    unpack_codes(Format::kQ4, q4, codes);
    for (auto& code : codes) code = truncate_code(format, code);
    std::vector<std::byte> packed(golden.size());
    pack_codes(format, codes, packed);
    EXPECT_EQ(packed, golden) << name;
    std::vector<std::uint8_t> back(codes.size());
    unpack_codes(format, golden, back);
    EXPECT_EQ(back, codes) << name;
  }
}

TEST(Golden, RecordsOfEveryFile) {
  const auto files = files_with("in_records_low");
  EXPECT_EQ(files.size(), 8U);
  for (const auto& [name, file] : files) {
    const Format format = low_format(file, "low_bits");
    const spec::ExpertGeometry geometry{std::stoll(file.metadata().at("hidden")),
                                        std::stoll(file.metadata().at("inter")), 64};
    const spec::RecordLayout full{geometry, Format::kQ4}, low{geometry, format};
    const auto kinds = file.ints("in_kinds");
    const std::span records(file.find("in_records_q4")->bytes);
    const std::span golden(file.find("in_records_low")->bytes);
    std::size_t seen = 0;
    for (std::size_t e = 0; e < kinds.size(); ++e) {
      if (kinds[e] == 0) continue;
      const auto full_bytes = static_cast<std::size_t>(full.bytes());
      const auto low_bytes = static_cast<std::size_t>(low.bytes());
      std::vector<std::byte> out(low_bytes);
      const auto done = truncate_record(full, records.subspan(e * full_bytes, full_bytes), low, out);
      ASSERT_TRUE(done.ok()) << done.error().message;
      const auto expected = golden.subspan(seen++ * low_bytes, low_bytes);
      EXPECT_EQ(out, std::vector<std::byte>(expected.begin(), expected.end())) << name << ", record " << e;
    }
    EXPECT_EQ(seen * static_cast<std::size_t>(low.bytes()), golden.size()) << name;
  }
}

// Their codes are uniformly distributed, for which dropping bits is all but optimal.
TEST(Golden, RefittedRecordsAreNearerThanTruncatedOnes) {
  for (const auto& [name, file] : files_with("in_records_low")) {
    const Format format = low_format(file, "low_bits");
    const spec::ExpertGeometry geometry{std::stoll(file.metadata().at("hidden")),
                                        std::stoll(file.metadata().at("inter")), 64};
    const spec::RecordLayout full{geometry, Format::kQ4}, low{geometry, format};
    const auto q4 =
        std::span(file.find("in_records_q4")->bytes).first(static_cast<std::size_t>(full.bytes()));
    std::vector<float> values(static_cast<std::size_t>(record_weights(full))), truncated(values.size()),
        refitted(values.size());
    std::vector<std::byte> record(static_cast<std::size_t>(low.bytes()));
    ASSERT_TRUE(record_values(full, q4, values).ok());
    ASSERT_TRUE(truncate_record(full, q4, low, record).ok());
    ASSERT_TRUE(record_values(low, record, truncated).ok());
    const auto error = quantise_record(low, values, {}, record);
    ASSERT_TRUE(error.ok()) << error.error().message;
    ASSERT_TRUE(record_values(low, record, refitted).ok());
    const double ours = squared_error(values, refitted);
    EXPECT_NEAR(*error, ours, 1e-4 * ours);
    EXPECT_LE(ours, 0.98 * squared_error(values, truncated)) << name;
  }
}

}  // namespace
}  // namespace sluice::quant
