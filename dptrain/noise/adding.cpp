// Adds noise in lattice steps to sums: `add_` of adding.py in one pass over memory, every operation rounded as numpy rounds it.
// Built without contraction: a product and a sum are rounded twice.

#include <cmath>
#include <cstdint>

namespace {

// What is not a number passes through, as it is, for it is never greater.
template <typename Noise>
void add(double* sums, const Noise* noise, long count, double gamma, double limit, double scale) {
    for (long i = 0; i < count; ++i) {
        double steps = std::rint(sums[i] / gamma);
        steps = -limit > steps ? -limit : steps;
        steps = steps > limit ? limit : steps;
        sums[i] = (steps + static_cast<double>(noise[i])) * scale;
    }
}

}  // namespace

// Both write what is released over the sums.
extern "C" void dptrain_add_reals(double* sums, const double* noise, long count, double gamma, double limit, double scale) {
    add(sums, noise, count, gamma, limit, scale);
}

extern "C" void dptrain_add_integers(double* sums, const std::int64_t* noise, long count, double gamma, double limit,
                                     double scale) {
    add(sums, noise, count, gamma, limit, scale);
}
