// Numbers side by side: vectors of the processor at hand, blocks of them turned over, and e^x of each.

#pragma once

#include <cmath>
#include <limits>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, TALL = 8;
#else
constexpr int LANES = 8, TALL = 6;
#endif
constexpr int WIDE = 2 * LANES;

typedef float Lane __attribute__((vector_size(4 * LANES)));
typedef int Whole __attribute__((vector_size(4 * LANES)));
typedef double Doubles __attribute__((vector_size(8 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4)));

inline Lane load(const float* from) { return (Lane)*(const Loose*)from; }

inline void store(float* to, Lane x) { *(Loose*)to = (Loose)x; }

inline Lane all(float x) { return Lane{} + x; }

template <int... I> struct Places {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { typedef Places<I...> Of; };

template <int S, int... I> inline void exchange(Lane& x, Lane& y, Places<I...>) {
    Lane low = __builtin_shufflevector(x, y, (I & S ? I - S + LANES : I)...);
    y = __builtin_shufflevector(x, y, (I & S ? I + LANES : I + S)...);
    x = low;
}

template <int S> inline void exchange_rows(Lane* rows) {
    for (int r = 0; r < LANES; ++r)
        if (!(r & S)) exchange<S>(rows[r], rows[r + S], typename Count<LANES>::Of());
}

// Turns a block of LANES rows over: what stood in row r and column c stands in row c and column r.
inline void turn(Lane* rows) {
    exchange_rows<1>(rows), exchange_rows<2>(rows), exchange_rows<4>(rows);
    if (LANES > 8) exchange_rows<LANES / 2>(rows);
}

// e^x to two units in the last place, by the polynomial of the Cephes library; zero below the normal numbers, infinity above 88,
// and what is not a number stays so.
inline Lane exponential(Lane x) {
    const Lane magic = all(12582912.0f);  // added and taken away again, it leaves the nearest whole number
    Lane n = (x * 1.44269504088896341f + magic) - magic;
    Lane r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Lane p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    p = p * (Lane)((__builtin_convertvector(n, Whole) + 127) << 23);
    p = x > 88.0f ? all(std::numeric_limits<float>::infinity()) : p;
    return x < -87.0f ? Lane{} : p;
}

}  // namespace
