// Standard normals in lattice steps, rounded, and the pairs of which that is not sure: `_nearest` of rounded.py, whose proof
// bounds every rounding here too. A product and a sum may be rounded once where the proof has it rounded twice.
//
// Blocks of BLOCK pairs stay in the cache of a core; every loop does one thing, several numbers at a time.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr long BLOCK = 256;
constexpr double MIDDLE = 0.5 - 0x1p-54;
constexpr double CELL = 6.283185307179586 / 4096;
constexpr std::uint64_t IN_CELL = (1ull << 52) - (1ull << 11);
constexpr std::uint64_t HALF = 0x3FEull << 52, UNIT = 0x3FFull << 52;

// The fraction of sqrt(1/2) lies here: below it, a number belongs to the power of two above, so that logarithms near 0 are of
// numbers near 1 and do not cancel.
constexpr std::uint64_t ROOT_HALF = 0x6A09E667F3BCDull;
constexpr std::uint64_t FRACTION = (1ull << 52) - 1;
constexpr double LN2_HIGH = 0x1.62e42fefa38p-1, LN2_LOW = 0x1.ef35793c7673p-45;

inline double as_double(std::uint64_t bits) {
    double found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
}

inline std::uint64_t as_bits(double value) {
    std::uint64_t found;
    std::memcpy(&found, &value, sizeof found);
    return found;
}

// The logarithm of a normal number from 2^-60 to 1, to 4 units of the last place: of z = 2^k m with m from sqrt(1/2) to sqrt(2),
// k ln 2 + 2 artanh(s) with s = (m - 1) / (m + 1); the series ends where its terms are below 2^-56.
inline double logarithm(double z) {
    std::uint64_t bits = as_bits(z), fraction = bits & FRACTION;
    std::uint64_t up = fraction >= ROOT_HALF ? 1 : 0;
    double m = as_double(fraction | (UNIT - (up << 52)));
    // A number from 2^52 on whose last bits are the exponent: a conversion that every processor does several at a time.
    double k = as_double((bits >> 52) + up | 0x433ull << 52) - (0x1p52 + 1023.0);
    double s = (m - 1.0) / (m + 1.0), q = s * s;
    double series = 1.0 / 25;
    series = series * q + 1.0 / 23;
    series = series * q + 1.0 / 21;
    series = series * q + 1.0 / 19;
    series = series * q + 1.0 / 17;
    series = series * q + 1.0 / 15;
    series = series * q + 1.0 / 13;
    series = series * q + 1.0 / 11;
    series = series * q + 1.0 / 9;
    series = series * q + 1.0 / 7;
    series = series * q + 1.0 / 5;
    series = series * q + 1.0 / 3;
    double twice = s + s;
    return k * LN2_HIGH + (twice + (twice * (q * series) + k * LN2_LOW));
}

// words: two of each pair. turns: e^(i angle) at the middle of each of 4096 cells. scale: -2 times the square of 32/3 of the
// steps of 1. Writes 2 * pairs whole numbers, and the places of pairs that are not sure; returns how many those are.
long nearest(const std::uint64_t* words, long pairs, const double* turns, double scale, double tail, double sure, double* found,
             std::int64_t* unsure) {
    alignas(64) double radius[BLOCK], sine[BLOCK], cosine[BLOCK], gap[BLOCK];
    alignas(64) double across[BLOCK], up[BLOCK];
    alignas(64) std::uint64_t second[BLOCK];
    long count = 0;
    for (long start = 0; start < pairs; start += BLOCK) {
        long many = pairs - start < BLOCK ? pairs - start : BLOCK;
        const std::uint64_t* from = words + 2 * start;
        double* to = found + 2 * start;
        for (long i = 0; i < many; ++i) {
            double x = as_double(from[2 * i] >> 12 | HALF) - MIDDLE;
            std::uint64_t w = from[2 * i + 1];
            double one = as_double((0ull - (w & 1)) & UNIT);  // 1 or 0
            second[i] = w;
            gap[i] = x < tail ? 1.0 : 0.0;
            radius[i] = std::fabs(one - x);
        }
        for (long i = 0; i < many; ++i) radius[i] = std::sqrt(logarithm(radius[i]) * scale);
        for (long i = 0; i < many; ++i) {
            double a = (as_double((second[i] & IN_CELL) | UNIT) - 1.5) * (-0.25 * CELL);
            double square = a * a - 3.0 / 8;
            sine[i] = radius[i] * (a * square);
            cosine[i] = radius[i] * (square * square - 3.0 / 64);
        }
        for (long i = 0; i < many; ++i) {
            const double* turn = turns + 2 * (second[i] >> 52);
            across[i] = turn[0];
            up[i] = turn[1];
        }
        for (long i = 0; i < many; ++i) {
            double u = cosine[i] * across[i] - sine[i] * up[i], v = cosine[i] * up[i] + sine[i] * across[i];
            double first = std::rint(u), other = std::rint(v);
            double off = std::fabs(u - first), apart = std::fabs(v - other);
            off = off > apart ? off : apart;
            gap[i] = gap[i] > off ? gap[i] : off;
            to[2 * i] = first;
            to[2 * i + 1] = other;
        }
        for (long i = 0; i < many; ++i) {  // a place that is sure is written over by the next one
            unsure[count] = start + i;
            count += gap[i] <= sure ? 0 : 1;
        }
    }
    return count;
}

}  // namespace

extern "C" long dptrain_nearest(const std::uint64_t* words, long pairs, const double* turns, double scale, double tail,
                                double sure, double* found, std::int64_t* unsure) {
    return nearest(words, pairs, turns, scale, tail, sure, found, unsure);
}

// The same of words that a cipher gives, `part` pairs at a time, each part written over the one before: `update` is
// EVP_EncryptUpdate of OpenSSL, which turns `zeros` into the next bytes of its stream. `doubted` gets the words of pairs that are
// not sure. Less than zero where the cipher failed.
extern "C" long dptrain_drawn(int (*update)(void*, unsigned char*, int*, const unsigned char*, int), void* cipher,
                              const unsigned char* zeros, std::uint64_t* room, long part, long pairs, const double* turns,
                              double scale, double tail, double sure, double* found, std::int64_t* unsure,
                              std::uint64_t* doubted) {
    long count = 0;
    for (long start = 0; start < pairs; start += part) {
        long many = pairs - start < part ? pairs - start : part;
        int written = 0, bytes = (int)(16 * many);
        if (update(cipher, (unsigned char*)room, &written, zeros, bytes) != 1 || written != bytes) return -1;
        long more = nearest(room, many, turns, scale, tail, sure, found + 2 * start, unsure + count);
        for (; more; --more, ++count) {
            const std::uint64_t* words = room + 2 * unsure[count];
            doubted[2 * count] = words[0];
            doubted[2 * count + 1] = words[1];
            unsure[count] += start;
        }
    }
    return count;
}
