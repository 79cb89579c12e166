// GELU and its gradient (Hendrycks and Gimpel, arXiv 1606.08415, section 2), exact and by its tanh form, entry by entry.

#include "lanes.h"

namespace {

// Writes of(x, g) for n entries; what is behind the last of them in its lanes counts as zero, and is not written.
template <class Of> inline void each(const float* x, const float* g, long n, float* out, Of of) {
    long i = 0;
    for (; i + LANES <= n; i += LANES) store(out + i, of(load(x + i), g ? load(g + i) : Lane{}));
    if (i == n) return;
    Lane last{}, grad{};
    for (long c = 0; c < n - i; ++c) last[c] = x[i + c], grad[c] = g ? g[i + c] : 0.0f;
    last = of(last, grad);
    for (long c = 0; c < n - i; ++c) out[i + c] = last[c];
}

// The chance that a standard normal number is below x, to 2^-23 or so (Abramowitz and Stegun, formula 7.1.26), and its density.
inline Lane below(Lane x, Lane& density) {
    Lane size = x < 0.0f ? -x : x;
    Lane t = 1.0f / (size * (0.3275911f * 0.70710678118654752f) + 1.0f);
    Lane e = exponential(x * x * -0.5f);
    Lane p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    Lane beyond = p * t * e * 0.5f;
    density = e * 0.39894228040143268f;
    return x < 0.0f ? beyond : 1.0f - beyond;
}

constexpr float SLOPE = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float CUBE = 0.044715f;

// (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + CUBE x^3), as 1 / (1 + e^(-2 u)), and what is left to one, without cancelling.
inline Lane logistic(Lane x, Lane& rest) {
    Lane e = exponential(-(x * (x * x * CUBE + 1.0f) * SLOPE));
    Lane share = 1.0f / (e + 1.0f);
    rest = x < 0.0f ? 1.0f - share : e * share;
    return share;
}

}  // namespace

extern "C" void dptrain_gelu(const float* x, long n, long by_tanh, float* out) {
    if (by_tanh)
        each(x, nullptr, n, out, [](Lane x, Lane) {
            Lane rest;
            return x * logistic(x, rest);
        });
    else
        each(x, nullptr, n, out, [](Lane x, Lane) {
            Lane density;
            return x * below(x, density);
        });
}

extern "C" void dptrain_gelu_backward(const float* g, const float* x, long n, long by_tanh, float* out) {
    if (by_tanh)
        each(x, g, n, out, [](Lane x, Lane g) {
            Lane rest, share = logistic(x, rest);
            return g * (share + x * share * rest * SLOPE * (x * x * (3.0f * CUBE) + 1.0f));
        });
    else
        each(x, g, n, out, [](Lane x, Lane g) {
            Lane density, share = below(x, density);
            return g * (share + x * density);
        });
}
