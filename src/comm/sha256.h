#pragma once

#include <array>
#include <string>
#include <string_view>

namespace llmc {

using Digest = std::array<unsigned char, 32>;

/// SHA-256 (FIPS 180-4).
Digest sha256(std::string_view bytes);

/// HMAC-SHA-256 (RFC 2104): shows that the sender knows the key without sending it.
Digest hmac_sha256(std::string_view key, std::string_view bytes);

/// Compares in a time that does not depend on where they differ.
bool same_digest(const Digest& a, const Digest& b);

/// `bytes` as lower-case hexadecimal digits.
std::string hex(std::string_view bytes);

}  // namespace llmc
