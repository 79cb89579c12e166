// Gradients of scale and shift of layer normalisation (Ba et al., arXiv 1607.06450, section 3), of one contribution in one pass.

#include <cmath>
#include <vector>

#include "lanes.h"

namespace {

constexpr long RUN = 32;  // rows that are added up in float32 before their sum is added to the others in float64

inline float added(Lane x) {
    float sum = 0.0f;
    for (int c = 0; c < LANES; ++c) sum += x[c];
    return sum;
}

// Adds x and b of a row to the sums of its columns: b, and b times (x - mean) * share.
inline void add(const float* x, const float* b, long width, float mean, float share, float* scale, float* shift) {
    long c = 0;
    for (; c + LANES <= width; c += LANES) {
        Lane back = load(b + c);
        store(scale + c, load(scale + c) + back * ((load(x + c) - mean) * share));
        store(shift + c, load(shift + c) + back);
    }
    for (; c < width; ++c) {
        scale[c] += b[c] * ((x[c] - mean) * share);
        shift[c] += b[c];
    }
}

// The mean of a row, and one over its standard deviation: of its distances from the mean, which cancel nowhere.
inline void measure(const float* x, long width, float eps, float& mean, float& share) {
    Lane sum{}, square{};
    float rest = 0.0f;
    long c = 0;
    for (; c + LANES <= width; c += LANES) sum += load(x + c);
    for (; c < width; ++c) rest += x[c];
    mean = (added(sum) + rest) / (float)width;
    rest = 0.0f;
    for (c = 0; c + LANES <= width; c += LANES) {
        Lane apart = load(x + c) - mean;
        square += apart * apart;
    }
    for (; c < width; ++c) rest += (x[c] - mean) * (x[c] - mean);
    share = 1.0f / std::sqrt((added(square) + rest) / (float)width + eps);
}

}  // namespace

// Of rows that lie one behind the other; scale and shift have one number per column.
extern "C" void dptrain_normalised(const float* x, const float* b, long rows, long width, float eps, float* scale, float* shift) {
    std::vector<float> run(2 * width);
    std::vector<double> total(2 * width, 0.0);
    for (long first = 0; first < rows; first += RUN) {
        for (float& sum : run) sum = 0.0f;
        for (long row = first; row < rows && row < first + RUN; ++row) {
            float mean, share;
            measure(x + row * width, width, eps, mean, share);
            add(x + row * width, b + row * width, width, mean, share, run.data(), run.data() + width);
        }
        for (long c = 0; c < 2 * width; ++c) total[c] += run[c];
    }
    for (long c = 0; c < width; ++c) scale[c] = (float)total[c], shift[c] = (float)total[width + c];
}
