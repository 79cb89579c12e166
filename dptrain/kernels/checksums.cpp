// Sums of 64-bit words by rows and by columns, each times an odd weight of its own; what overflows is dropped.

#include <cstdint>
#include <cstring>

namespace {

constexpr long SIDE = 512;

inline std::uint64_t word(const char* from, long place) {
    std::uint64_t found;
    std::memcpy(&found, from + 8 * place, 8);
    return found;
}

inline std::uint64_t odd(long place) { return 2 * static_cast<std::uint64_t>(place) + 1; }

// Of whole rows: the sum of each row times its weight, and that of each column times its own, which is 2 SIDE as large.
std::uint64_t grid(const char* from, long rows) {
    alignas(64) std::uint64_t columns[SIDE] = {0};
    std::uint64_t total = 0;
    for (long r = 0; r < rows; ++r, from += 8 * SIDE) {
        std::uint64_t sums[8] = {0};
        for (long c = 0; c < SIDE; c += 8)
            for (int k = 0; k < 8; ++k) {
                std::uint64_t one = word(from, c + k);
                columns[c + k] += one;
                sums[k] += one;
            }
        for (int k = 1; k < 8; ++k) sums[0] += sums[k];
        total += sums[0] * odd(r);
    }
    for (long c = 0; c < SIDE; ++c) total += columns[c] * odd(c) * (2 * SIDE);
    return total;
}

}  // namespace

// Of each of `many` pieces of memory, of `words` words: whole rows of SIDE words, or less than one row, word by word.
extern "C" void dptrain_checksums(const char* const* from, const long* words, long many, std::uint64_t* out) {
    for (long each = 0; each < many; ++each) {
        if (words[each] % SIDE == 0) {
            out[each] = grid(from[each], words[each] / SIDE);
            continue;
        }
        std::uint64_t total = 0;
        for (long k = 0; k < words[each]; ++k) total += word(from[each], k) * odd(k);
        out[each] = total;
    }
}
