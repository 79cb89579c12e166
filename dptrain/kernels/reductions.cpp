// Squared norms of sums of outer products, sum_t b_t a_t^T, of N contributions: <A A^T, B B^T> over one triangle of both.
//
// A tile of a Gram matrix is added up in registers: TALL rows of x by WIDE rows of x, which lie transposed in a panel. Blocks of
// SIDE x SIDE entries of both matrices stay in the cache of a core until their products are added, in float64. Every entry is a
// sum of runs of at most DEEP terms, each added one after the other in float32. The cache is asked for the next run meanwhile.
//
// What certified sums do with every coordinate: scale it, truncate it towards zero, and square or add up what is left.
//
// And squared norms and weighted sums of gradients that are formed, of many small tensors in one call.

#include <cmath>
#include <vector>

#include "lanes.h"

namespace {

constexpr int SIDE = 128;
constexpr int DEEP = 256;
constexpr int RUN = 1024;

// Numbers of contributions, `each` floats from one to the next; rows of `width` numbers, `row` floats apart.
struct Factor {
    const float* at;
    long each, row, width;
};

struct Room {
    alignas(64) float panels[SIDE / WIDE * DEEP * WIDE];
    alignas(64) float a[(SIDE + TALL) * SIDE];
    alignas(64) float b[(SIDE + TALL) * SIDE];
    alignas(64) float zeros[DEEP];
};

// Writes LANES terms of LANES rows, from term k on, as LANES lines of a panel.
inline void transpose(const float* const* from, long k, float* to) {
    Lane rows[LANES];
    for (int r = 0; r < LANES; ++r) rows[r] = load(from[r] + k);
    turn(rows);
    for (int r = 0; r < LANES; ++r) *(Lane*)(to + r * WIDE) = rows[r];
}

// Writes what LANES rows of x have in LANES columns, each row times its weight, as LANES rows of `out`.
inline void turn_weighted(const float* x, long row, const float* weights, float* out, long rows) {
    Lane block[LANES];
    for (int r = 0; r < LANES; ++r) block[r] = load(x + r * row) * weights[r];
    turn(block);
    for (int r = 0; r < LANES; ++r) store(out + r * rows, block[r]);
}

// Lays rows of x out in panels of WIDE rows, term by term; rows that are missing are zeros.
void lay_out(const float* x, long stride, long rows, long terms, Room& room) {
    for (long j = 0; j < (rows + WIDE - 1) / WIDE * WIDE; j += LANES) {
        float* to = room.panels + j / WIDE * DEEP * WIDE + j % WIDE;
        const float* from[LANES];
        for (int c = 0; c < LANES; ++c) from[c] = j + c < rows ? x + (j + c) * stride : room.zeros;
        long k = 0;
        for (; k + LANES <= terms; k += LANES) transpose(from, k, to + k * WIDE);
        for (; k < terms; ++k)
            for (int c = 0; c < LANES; ++c) to[k * WIDE + c] = from[c][k];
    }
}

// Adds up, or adds to what is there, a tile of TALL rows by V * LANES rows of a panel; AHEAD asks the cache for as many numbers of
// TALL rows that are next, `apart` from one another.
template <int V, bool AHEAD>
void tile(const float* const* rows, const float* panel, long terms, float* out, bool fresh, const float* next, long apart) {
    Lane sums[TALL][V];
    for (int i = 0; i < TALL; ++i)
        for (int v = 0; v < V; ++v) sums[i][v] = Lane{};
    for (long k = 0; k < terms; ++k) {
        if (AHEAD && k % 2 == 0) __builtin_prefetch(next + k / 2 % TALL * apart + k / (2 * TALL) * (2 * TALL), 0, 2);
        Lane columns[V];
        for (int v = 0; v < V; ++v) columns[v] = *(const Lane*)(panel + k * WIDE + v * LANES);
        for (int i = 0; i < TALL; ++i) {
            float x = rows[i][k];
            for (int v = 0; v < V; ++v) sums[i][v] += x * columns[v];
        }
    }
    for (int i = 0; i < TALL; ++i)
        for (int v = 0; v < V; ++v) {
            Lane* to = (Lane*)(out + i * SIDE + v * LANES);
            *to = fresh ? sums[i][v] : *to + sums[i][v];
        }
}

// Products of the m rows from i0 on with the n rows from j0 on; of a block on the diagonal, tiles that touch its upper triangle,
// and where the diagonal has left the first half of a tile, the other half. `after` is what will be asked for behind this.
void block(const float* x, Factor of, long i0, long m, long j0, long n, float* out, const float* after, long after_row, Room& room) {
    long runs = of.width > DEEP ? (of.width + DEEP - 1) / DEEP : 1;
    long run = of.width ? (of.width + runs * LANES - 1) / (runs * LANES) * LANES : DEEP;
    for (long start = 0; start < of.width || start == 0; start += run) {
        bool last = start + run >= of.width, fresh = start == 0;
        long terms = last ? of.width - start : run;
        lay_out(x + j0 * of.row + start, of.row, n, terms, room);
        for (long j = 0; j < n; j += WIDE)
            for (long i = 0; i < m && (i0 < j0 || i < j + WIDE); i += TALL) {
                const float *rows[TALL], *panel = room.panels + j / WIDE * DEEP * WIDE;
                for (int k = 0; k < TALL; ++k) rows[k] = i + k < m ? x + (i0 + i + k) * of.row + start : room.zeros;
                long apart = last ? after_row : of.row;
                const float* next = (last ? after : x + j0 * of.row + start + run) + i * apart;
                float* to = out + i * SIDE + j;
                bool half = i0 == j0 && i >= j + LANES, ahead = j + WIDE >= n;
                if (half && ahead) tile<1, true>(rows, panel + LANES, terms, to + LANES, fresh, next, apart);
                else if (half) tile<1, false>(rows, panel + LANES, terms, to + LANES, fresh, next, apart);
                else if (ahead) tile<2, true>(rows, panel, terms, to, fresh, next, apart);
                else tile<2, false>(rows, panel, terms, to, fresh, next, apart);
            }
    }
}

// Adds a_c b_c to the sums, for whole lanes of columns from `from` on, and returns what they are of the others: products in
// float32, added up in float64.
inline double add_products(const float* a, const float* b, long from, long columns, const Whole& places, Doubles& sums) {
    long c = from / LANES * LANES;
    for (; c + LANES <= columns; c += LANES) {
        Lane product = *(const Lane*)(a + c) * *(const Lane*)(b + c);
        if (c < from) product = places < (int)(from - c) ? Lane{} : product;  // below the diagonal nothing was formed
        sums += __builtin_convertvector(product, Doubles);
    }
    double others = 0.0;
    for (c = c < from ? from : c; c < columns; ++c) others += (double)(a[c] * b[c]);
    return others;
}

// Products of R columns of y with 32 or 16 columns of x over all t rows, added up in registers and written to rows of out.
template <int R, int V>
void strip(const float* x, long x_row, const float* y, long y_row, long left, long t, float* out, long width, long kept) {
    Lane sums[R][V];
    long at[R];
    for (int i = 0; i < R; ++i) {
        at[i] = i < left ? i : left - 1;
        for (int v = 0; v < V; ++v) sums[i][v] = Lane{};
    }
    for (long k = 0; k < t; ++k, x += x_row, y += y_row) {
        __builtin_prefetch(x + WIDE), __builtin_prefetch(x + WIDE + LANES), __builtin_prefetch(y + 2 * R);  // of the strip to come
        Lane row[V];
        for (int v = 0; v < V; ++v) row[v] = load(x + v * LANES);
        for (int i = 0; i < R; ++i) {
            float one = y[at[i]];
            for (int v = 0; v < V; ++v) sums[i][v] += one * row[v];
        }
    }
    for (int i = 0; i < R && i < left; ++i)
        for (int v = 0; v < V; ++v)
            for (int c = 0; c < LANES && v * LANES + c < kept; ++c) out[i * width + v * LANES + c] = sums[i][v][c];
}

// out = sum over t of y_t x_t^T for V * LANES columns of x, of which `kept` count.
template <int R, int V>
void strips(const float* x, long x_row, const float* y, long y_row, long p, long t, float* out, long width, long kept) {
    for (long i = 0; i < p; i += R) strip<R, V>(x, x_row, y + i, y_row, p - i, t, out + i * width, width, kept);
}

// Integers of up to RUN coordinates: a product and a truncation, each of which has one result, wherever it is formed.
inline void truncate(const float* x, long n, float step, float* to) {
    for (long i = 0; i < n; ++i) to[i] = std::trunc(x[i] * step);
}

}  // namespace

// Writes sum_t b_t a_t^T of each of the n contributions to out, n x p x d; `panel` has room for 16 * t floats.
extern "C" void dptrain_outer(const float* a, long a_each, long a_row, long d, const float* b, long b_each, long b_row, long p,
                              long n, long t, float* out, float* panel) {
    for (long each = 0; each < n; ++each, out += p * d) {
        const float *x = a + each * a_each, *y = b + each * b_each;
        long c = 0;
        for (; c + WIDE <= d; c += WIDE) strips<TALL, 2>(x + c, a_row, y, b_row, p, t, out + c, d, WIDE);
        for (; c < d; c += LANES) {
            long kept = d - c < LANES ? d - c : LANES;
            const float* from = x + c;
            long row = a_row;
            if (kept < LANES) {  // a row may end where memory does
                for (long k = 0; k < t; ++k)
                    for (long j = 0; j < LANES; ++j) panel[k * LANES + j] = j < kept ? from[k * a_row + j] : 0.0f;
                from = panel, row = LANES;
            }
            strips<2 * TALL, 1>(from, row, y, b_row, p, t, out + c, d, kept);
        }
    }
}

namespace {

// Of one contribution and of each of `many` b beside the same a, all of t rows, float64:
// square: the sum over t, s of (a_t . a_s)(b_t . b_s). reach: that of |a_t||b_t|. in_a, in_b: those of |a_t| and |b_t|.
// What stands in `sums` for one b lies `apart` from what does for the next, and each of the four `across` from the one before.
void norms(Factor a, const Factor* several, long many, long t, double* sums, long apart, long across, Room& room) {
    Whole places = Whole{};
    for (int k = 0; k < LANES; ++k) places[k] = k;
    for (long one = 0; one < many; ++one)
        for (long k = 0; k < 4; ++k) sums[one * apart + k * across] = 0.0;
    for (long j0 = 0; j0 < t; j0 += SIDE)
        for (long i0 = 0; i0 <= j0; i0 += SIDE) {
            long m = t - i0 < SIDE ? t - i0 : SIDE, columns = t - j0 < SIDE ? t - j0 : SIDE;
            block(a.at, a, i0, m, j0, columns, room.a, several[0].at + j0 * several[0].row, several[0].row, room);
            for (long one = 0; one < many; ++one) {
                const Factor &b = several[one], &then = one + 1 < many ? several[one + 1] : a;
                const float* after = one + 1 < many ? then.at + j0 * then.row : a.at + a.each;
                block(b.at, b, i0, m, j0, columns, room.b, after, then.row, room);
                double upper = 0.0, diagonal = 0.0, *found = sums + one * apart;
                Doubles lines = Doubles{};
                for (long r = 0; r < m; ++r) {
                    const float *of_a = room.a + r * SIDE, *of_b = room.b + r * SIDE;
                    upper += add_products(of_a, of_b, i0 == j0 ? r + 1 : 0, columns, places, lines);
                    if (i0 != j0) continue;
                    double length_a = std::sqrt((double)of_a[r]), length_b = std::sqrt((double)of_b[r]);
                    diagonal += (double)(of_a[r] * of_b[r]);
                    found[across] += length_a * length_b;
                    found[2 * across] += length_a;
                    found[3 * across] += length_b;
                }
                for (int k = 0; k < LANES; ++k) upper += lines[k];
                found[0] += diagonal + 2.0 * upper;
            }
        }
}

}  // namespace

// Norms of `groups` of factors, of `many` contributions from the first on. Of a group is told: rows t, the number of its b, and
// where, how far from contribution to contribution and from row to row, and how wide a is, and each b. Strides count floats, and
// the last dimension is contiguous. `sums` has four parts, of as many rows as there are b in all, of `n` numbers each.
extern "C" void dptrain_grams(const long long* told, long groups, long first, long many, double* sums, long rows, long n) {
    static thread_local Room room;
    static thread_local std::vector<Factor> several;
    for (; groups; --groups) {
        long t = told[0], beside = told[1];
        told += 2;
        several.clear();
        for (long k = 0; k <= beside; ++k, told += 4) {
            Factor one{(const float*)told[0], (long)told[1], (long)told[2], (long)told[3]};
            one.at += first * one.each;
            several.push_back(one);
        }
        for (long each = 0; each < many; ++each) {
            norms(several[0], several.data() + 1, beside, t, sums + first + each, n, rows * n, room);
            for (Factor& one : several) one.at += one.each;
        }
        sums += beside * n;
    }
}

// out = (diag(weights) x)^T for `width` columns of x: out has a row of `rows` numbers for each.
extern "C" void dptrain_turn(const float* x, long row, long rows, long width, const float* weights, float* out) {
    long whole = rows / LANES * LANES, c = 0;
    for (; c + LANES <= width; c += LANES)
        for (long k = 0; k < whole; k += LANES) {
            for (int r = 0; r < LANES; ++r) __builtin_prefetch(x + (k + 2 * LANES + r) * row + c);
            turn_weighted(x + k * row + c, row, weights + k, out + c * rows + k, rows);
        }
    for (; c < width; ++c)
        for (long k = 0; k < whole; ++k) out[c * rows + k] = x[k * row + c] * weights[k];
    for (long k = whole; k < rows; ++k)
        for (c = 0; c < width; ++c) out[c * rows + k] = x[k * row + c] * weights[k];
}

// Adds n numbers to a total.
extern "C" void dptrain_add_floats(double* __restrict total, const float* __restrict x, long n) {
    for (long i = 0; i < n; ++i) total[i] += (double)x[i];
}

// Adds to `rows` rows of a total what lies in as many columns of x, whose rows are `row` apart.
extern "C" void dptrain_add_turned(double* total, long width, const float* x, long row, long rows) {
    long whole = width / LANES * LANES, r = 0;
    for (; r + LANES <= rows; r += LANES) {
        double* to = total + r * width;
        for (long c = 0; c < whole; c += LANES) {
            Lane block[LANES];
            for (int k = 0; k < LANES; ++k) __builtin_prefetch(x + (c + 2 * LANES + k) * row + r);
            for (int k = 0; k < LANES; ++k) block[k] = load(x + (c + k) * row + r);
            turn(block);
            for (int i = 0; i < LANES; ++i)
                for (int k = 0; k < LANES; ++k) to[i * width + c + k] += (double)block[i][k];
        }
        for (int i = 0; i < LANES; ++i)
            for (long c = whole; c < width; ++c) to[i * width + c] += (double)x[c * row + r + i];
    }
    for (; r < rows; ++r)
        for (long c = 0; c < width; ++c) total[r * width + c] += (double)x[c * row + r];
}

// The sum of the squares of the integers that n coordinates become, as float64 adds it up in some order.
extern "C" double dptrain_squares(const float* x, long n, float step) {
    alignas(64) float part[RUN];
    double lines[16] = {0.0}, sum = 0.0;
    for (long start = 0; start < n; start += RUN) {
        long many = n - start < RUN ? n - start : RUN, i = 0;
        truncate(x + start, many, step, part);
        for (; i + 16 <= many; i += 16)
            for (int k = 0; k < 16; ++k) lines[k] += (double)part[i + k] * (double)part[i + k];
        for (; i < many; ++i) sum += (double)part[i] * (double)part[i];
    }
    for (int k = 0; k < 16; ++k) sum += lines[k];
    return sum;
}

// Adds to a total the integers that n coordinates of each of `many` tensors become.
extern "C" void dptrain_add(double* total, long n, const float* const* from, const float* steps, long many) {
    alignas(64) float part[RUN];
    for (long start = 0; start < n; start += RUN) {
        long run = n - start < RUN ? n - start : RUN;
        for (long each = 0; each < many; ++each) {
            truncate(from[each] + start, run, steps[each], part);
            for (long i = 0; i < run; ++i) total[start + i] += (double)part[i];
        }
    }
}

// Squared norms of the rows of `many` matrices of n rows each, float64: products of float32 numbers are exact there.
extern "C" void dptrain_rows_squares(const float* const* from, const long* widths, long many, long n, double* out) {
    for (long each = 0; each < many; ++each)
        for (long row = 0; row < n; ++row) {
            const float* x = from[each] + row * widths[each];
            double lines[2 * LANES] = {0.0}, sum = 0.0;
            long i = 0;
            for (; i + 2 * LANES <= widths[each]; i += 2 * LANES)
                for (int k = 0; k < 2 * LANES; ++k) lines[k] += (double)x[i + k] * (double)x[i + k];
            for (; i < widths[each]; ++i) sum += (double)x[i] * (double)x[i];
            for (int k = 0; k < 2 * LANES; ++k) sum += lines[k];
            out[each * n + row] = sum;
        }
}

// Adds to `many` totals the rows of a matrix each, times their weights.
extern "C" void dptrain_rows_add(double* const* totals, const float* const* from, const long* widths, long many, long n,
                                 const double* weights) {
    constexpr int STEP = 4 * LANES;
    for (long each = 0; each < many; ++each) {
        const double* w = weights + each * n;
        long width = widths[each], i = 0;
        for (; i + STEP <= width; i += STEP) {
            double sum[STEP] = {0.0};
            const float* x = from[each] + i;
            for (long row = 0; row < n; ++row, x += width)
                for (int k = 0; k < STEP; ++k) sum[k] += w[row] * (double)x[k];
            for (int k = 0; k < STEP; ++k) totals[each][i + k] += sum[k];
        }
        for (; i < width; ++i) {
            double sum = 0.0;
            for (long row = 0; row < n; ++row) sum += w[row] * (double)from[each][row * width + i];
            totals[each][i] += sum;
        }
    }
}
