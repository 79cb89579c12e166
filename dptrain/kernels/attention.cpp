// Attention of N rows of H heads, forward and backward (Dao et al., arXiv 2205.14135, algorithms 1 and 4), with the scores of a few
// queries and all keys at a time, so that no sum is scaled anew.
//
// Every head of every row is computed by itself, in one order: its bits depend neither on what else is in the microbatch nor on
// where it lies. A product is added up in registers, TALL rows by up to WIDE columns.

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "lanes.h"

namespace {

constexpr int QUERIES = 4 * TALL;
constexpr float NONE = -std::numeric_limits<float>::infinity();

inline long least(long a, long b) { return a < b ? a : b; }

inline long up(long n) { return (n + WIDE - 1) / WIDE * WIDE; }

// Lays rows out in panels of WIDE rows, term by term; rows that are missing are zeros. d is a multiple of LANES.
void lay_out(const float* x, long stride, long rows, long d, float* panels) {
    for (long j = 0; j < up(rows); j += LANES) {
        float* to = panels + j / WIDE * d * WIDE + j % WIDE;
        for (long k = 0; k < d; k += LANES) {
            Lane block[LANES];
            for (int r = 0; r < LANES; ++r) block[r] = j + r < rows ? load(x + (j + r) * stride + k) : Lane{};
            turn(block);
            for (int r = 0; r < LANES; ++r) *(Lane*)(to + (k + r) * WIDE) = block[r];
        }
    }
}

// Rows one behind the other: what lies a power of two apart would push itself out of the cache.
const float* beside(const float* x, long& stride, long rows, long d, float* room) {
    if (stride == d) return x;
    for (long r = 0; r < rows; ++r) std::memcpy(room + r * d, x + r * stride, sizeof(float) * d);
    stride = d;
    return room;
}

// R x V sums over terms k of x(i, k) y(k, v). x lies in rows of i, of which `left` exist, or turned, in rows of k.
template <int R, int V, bool TURNED>
inline void product(const float* x, long x_row, long left, const float* y, long y_row, long terms, Lane (&sums)[R][V]) {
    const float* rows[R];
    for (int i = 0; i < R; ++i) rows[i] = TURNED ? x + i : x + least(i, left - 1) * x_row;
    for (int i = 0; i < R; ++i)
        for (int v = 0; v < V; ++v) sums[i][v] = Lane{};
    for (long k = 0; k < terms; ++k, y += y_row) {
        Lane line[V];
        for (int v = 0; v < V; ++v) line[v] = load(y + v * LANES);
        for (int i = 0; i < R; ++i) {
            float one = TURNED ? x[k * x_row + i] : rows[i][k];
            for (int v = 0; v < V; ++v) sums[i][v] += one * line[v];
        }
    }
}

// Scores of `rows` queries with the keys of panels, TALL x WIDE at a time; above the diagonal of a causal one nothing.
void scores(const float* q, long q_row, long rows, const float* panels, long d, long keys, long first, bool causal, float* out,
            long wide) {
    for (long j = 0; j < keys; j += WIDE)
        for (long i = 0; i < rows; i += TALL) {
            if (causal && j >= first + i + TALL) continue;
            Lane sums[TALL][2];
            product<TALL, 2, false>(q + i * q_row, q_row, rows - i, panels + j * d, WIDE, d, sums);
            for (int r = 0; r < TALL; ++r)
                for (int v = 0; v < 2; ++v) *(Lane*)(out + (i + r) * wide + j + v * LANES) = sums[r][v];
        }
}

// to = x y, or += for turned x; x: `rows` rows (or columns), y: `terms` rows of d numbers. Causal ones end, or begin, at the diagonal.
template <int V, bool TURNED>
inline void part(const float* x, long x_row, long left, const float* y, long y_row, long terms, const float* factors, float factor,
                 float* to, long row) {
    Lane sums[TALL][V];
    product<TALL, V, TURNED>(x, x_row, left, y, y_row, terms, sums);
    for (long i = 0; i < least(left, TALL); ++i)
        for (int v = 0; v < V; ++v) {
            Lane found = sums[i][v] * (factors ? factors[i] : factor);
            float* at = to + i * row + v * LANES;
            store(at, TURNED ? load(at) + found : found);
        }
}

template <bool TURNED>
void times(const float* x, long x_row, long left, const float* y, long y_row, long terms, long d, const float* factors, float factor,
           float* to, long row) {
    long c = 0;
    for (; c + WIDE <= d; c += WIDE) part<2, TURNED>(x, x_row, left, y + c, y_row, terms, factors, factor, to + c, row);
    if (c < d) part<1, TURNED>(x, x_row, left, y + c, y_row, terms, factors, factor, to + c, row);
}

// A mask for LANES scores from j on, of which `kept` exist.
inline Lane masked(const float* mask, long step, long j, long kept) {
    if (!mask) return Lane{};
    if (!step) return all(*mask);
    if (kept >= LANES) return load(mask + j);
    Lane found{};
    for (long c = 0; c < kept; ++c) found[c] = mask[j + c];
    return found;
}

inline Lane only(Lane x, long kept, float other) {
    for (long c = kept < 0 ? 0 : kept; c < LANES; ++c) x[c] = other;
    return x;
}

inline float sum_of(Lane x) {
    float sum = 0.0f;
    for (int c = 0; c < LANES; ++c) sum += x[c];
    return sum;
}

struct Sizes {
    long heads, queries, keys, d, causal;
};

// One head of one row of a tensor: where it begins, and how far its positions lie apart.
struct Head {
    float* at;
    long row, step;
    float* of(long position) const { return at + position * row; }
};

// Finds head h of row n: `lay` holds the strides of rows of the microbatch, heads, positions and entries.
inline Head head(float* at, const long* lay, long n, long h) {
    return {at ? at + n * lay[0] + h * lay[1] : nullptr, lay[2], lay[3]};
}

// Has the cache fetch position i of a head to come, from where positions lie far apart and nothing else would foresee it.
template <int WRITTEN = 0> inline void fetch(const Head& x, long i, long positions, long d) {
    if (x.at && i < positions)
        for (long c = 0; c < d; c += LANES) __builtin_prefetch(x.of(i) + c, WRITTEN, 2);
}

// How many scores of query i count, and up to where what stands in its line is read.
inline long limit_of(const Sizes& s, long i) { return s.causal ? least(s.keys, i + 1) : s.keys; }
inline long end_of(const Sizes& s, long i) { return s.causal ? least(up(s.keys), up(i / TALL * TALL + TALL)) : up(s.keys); }

// Turns a line of scores into weights that are not over their sum yet; tells the largest score, and that sum.
inline void weigh(float* line, const float* mask, long step, float scale, long limit, long end, float& most, float& sum) {
    Lane top = all(NONE);
    long j = 0;
    for (; j < limit; j += LANES) {
        Lane x = *(Lane*)(line + j) * scale + masked(mask, step, j, limit - j);
        if (limit - j < LANES) x = only(x, limit - j, NONE);
        *(Lane*)(line + j) = x;
        top = x > top ? x : top;
    }
    for (; j < end; j += LANES) *(Lane*)(line + j) = all(NONE);
    most = NONE;
    for (int c = 0; c < LANES; ++c) most = top[c] > most ? top[c] : most;
    if (most == NONE) most = 0.0f;  // a query that sees no key gets zeros, as from torch
    Lane sums{};
    for (j = 0; j < end; j += LANES) {
        Lane x = exponential(*(Lane*)(line + j) - most);
        *(Lane*)(line + j) = x;
        sums += x;
    }
    sum = sum_of(sums);
    if (sum == 0.0f) sum = 1.0f;
}

// Turns a line of scores into weights, and one of their gradients into gradients of the scores.
inline void weigh_back(float* line, float* slope, const float* mask, long step, float scale, float length, float mean, long limit,
                       long end) {
    long j = 0;
    for (; j < limit; j += LANES) {
        Lane x = *(Lane*)(line + j) * scale + masked(mask, step, j, limit - j);
        Lane weight = exponential(x - length), change = weight * (*(Lane*)(slope + j) - mean);
        if (limit - j < LANES) weight = only(weight, limit - j, 0.0f), change = only(change, limit - j, 0.0f);
        *(Lane*)(line + j) = weight, *(Lane*)(slope + j) = change;
    }
    for (; j < end; j += LANES) *(Lane*)(line + j) = *(Lane*)(slope + j) = Lane{};
}

// V * LANES columns of one product: `left` rows of x from `at` on, whatever lies behind the last of them.
template <int V, bool TURNED>
inline void columns(const float* x, long x_row, long left, const float* y, long y_row, long terms, float* to, long row, long kept) {
    Lane sums[TALL][V];
    if (TURNED && left < TALL) {  // a row of x may end where memory does
        for (int i = 0; i < TALL; ++i)
            for (int v = 0; v < V; ++v) sums[i][v] = Lane{};
        for (long k = 0; k < terms; ++k)
            for (long i = 0; i < left; ++i)
                for (int v = 0; v < V; ++v) sums[i][v] += x[k * x_row + i] * load(y + k * y_row + v * LANES);
    } else {
        product<TALL, V, TURNED>(x, x_row, left, y, y_row, terms, sums);
    }
    for (long i = 0; i < least(left, TALL); ++i)
        for (int v = 0; v < V; ++v) {
            float* at = to + i * row + v * LANES;
            if (kept >= V * LANES)
                store(at, sums[i][v]);
            else
                for (long c = 0; c < LANES && v * LANES + c < kept; ++c) at[c] = sums[i][v][c];
        }
}

template <int V, bool TURNED>
void all_rows(const float* x, long x_row, long rows, const float* y, long y_row, long terms, float* to, long row, long kept) {
    for (long i = 0; i < rows; i += TALL)
        columns<V, TURNED>(TURNED ? x + i : x + i * x_row, x_row, rows - i, y, y_row, terms, to + i * row, row, kept);
}

// out = x y: m x n, k terms. What is turned lies in columns.
template <bool TURNED>
void multiply(const float* x, long x_row, const float* y, long y_row, long y_turned, long m, long n, long k, float* out, float* room) {
    long c = 0;
    if (y_turned) {
        lay_out(y, y_row, n, k, room);
        for (; c < n; c += WIDE) all_rows<2, TURNED>(x, x_row, m, room + c * k, WIDE, k, out + c, n, n - c);
        return;
    }
    for (; c + WIDE <= n; c += WIDE) all_rows<2, TURNED>(x, x_row, m, y + c, y_row, k, out + c, n, WIDE);
    if (c == n) return;
    for (long t = 0; t < k; ++t)
        for (long j = 0; j < WIDE; ++j) room[t * WIDE + j] = c + j < n ? y[t * y_row + c + j] : 0.0f;
    all_rows<2, TURNED>(x, x_row, m, room, WIDE, k, out + c, n, n - c);
}

}  // namespace

// Floats of room that a thread needs.
extern "C" long dptrain_attention_room(long queries, long keys, long d) {
    return 3 * up(keys) * d + 2 * QUERIES * up(keys) + 2 * queries * d + LANES;
}

// at: q, k, v, mask or nothing, results, and logarithms of the sums of e^score; four strides of each, of which the last is that of
// the mask's entries; all other entries lie one behind the other. Heads are counted row by row.
extern "C" void dptrain_attention(float* const* at, const long* lay, const long* sizes, float scale, long first, long many, float* room) {
    const Sizes s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
    const long wide = up(s.keys), d = s.d;
    float *panels = room, *lines = panels + wide * d, *values = lines + QUERIES * wide;
    for (long one = first; one < first + many; ++one) {
        Head part[6], next[3]{};
        for (int each = 0; each < 6; ++each) part[each] = head(at[each], lay + 4 * each, one / s.heads, one % s.heads);
        for (int each = 0; each < 3 && one + 1 < first + many; ++each)
            next[each] = head(at[each], lay + 4 * each, (one + 1) / s.heads, (one + 1) % s.heads);
        const auto [q, k, v, mask, out, logs] = part;
        long v_row = v.row;
        const float* value = beside(v.at, v_row, s.keys, d, values);
        lay_out(k.at, k.row, s.keys, d, panels);
        for (long start = 0; start < s.queries; start += QUERIES) {
            const long rows = least(QUERIES, s.queries - start), keys = limit_of(s, start + rows - 1);
            scores(q.of(start), q.row, rows, panels, d, keys, start, s.causal, lines, wide);
            float over[QUERIES];
            for (long i = 0; i < rows; ++i) {
                for (int each = 0; each < 3; ++each) fetch(next[each], start + i, each ? s.keys : s.queries, d);
                float most, sum;
                weigh(lines + i * wide, mask.at ? mask.of(start + i) : nullptr, mask.step, scale, limit_of(s, start + i),
                      end_of(s, start + i), most, sum);
                over[i] = 1.0f / sum;
                *logs.of(start + i) = most + std::log(sum);
            }
            for (long i = 0; i < rows; i += TALL)
                times<false>(lines + i * wide, wide, rows - i, value, v_row, limit_of(s, least(start + i + TALL, s.queries) - 1), d,
                             over + i, 1.0f, out.of(start + i), out.row);
        }
    }
}

// at: as above, and behind it the gradient of the results, and those of q, k and v, which are written.
extern "C" void dptrain_attention_backward(float* const* at, const long* lay, const long* sizes, float scale, long first, long many,
                                           float* room) {
    const Sizes s{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
    const long wide = up(s.keys), d = s.d;
    float *key_panels = room, *value_panels = key_panels + wide * d, *lines = value_panels + wide * d, *slopes = lines + QUERIES * wide;
    float *keys_beside = slopes + QUERIES * wide, *queries_beside = keys_beside + wide * d, *grads_beside = queries_beside + s.queries * d;
    for (long one = first; one < first + many; ++one) {
        Head part[10], next[10]{};
        for (int each = 0; each < 10; ++each) part[each] = head(at[each], lay + 4 * each, one / s.heads, one % s.heads);
        for (int each = 0; each < 10 && one + 1 < first + many; ++each)
            next[each] = head(at[each], lay + 4 * each, (one + 1) / s.heads, (one + 1) % s.heads);
        const auto [q, k, v, mask, out, logs, grad, dq, dk, dv] = part;
        long q_row = q.row, k_row = k.row, g_row = grad.row;
        const float* query = beside(q.at, q_row, s.queries, d, queries_beside);
        const float* key = beside(k.at, k_row, s.keys, d, keys_beside);
        const float* g = beside(grad.at, g_row, s.queries, d, grads_beside);
        lay_out(key, k_row, s.keys, d, key_panels);
        lay_out(v.at, v.row, s.keys, d, value_panels);
        for (long j = 0; j < s.keys; ++j) std::memset(dk.of(j), 0, sizeof(float) * d), std::memset(dv.of(j), 0, sizeof(float) * d);
        for (long start = 0; start < s.queries; start += QUERIES) {
            const long rows = least(QUERIES, s.queries - start), keys = limit_of(s, start + rows - 1);
            scores(query + start * q_row, q_row, rows, key_panels, d, keys, start, s.causal, lines, wide);
            scores(g + start * g_row, g_row, rows, value_panels, d, keys, start, s.causal, slopes, wide);
            for (long i = 0; i < rows; ++i) {
                for (int each : {0, 4, 6}) fetch(next[each], start + i, s.queries, d);
                for (int each : {1, 2}) fetch(next[each], start + i, s.keys, d);
                fetch<1>(next[7], start + i, s.queries, d);
                for (int each : {8, 9}) fetch<1>(next[each], start + i, s.keys, d);
                Lane both{};
                for (long c = 0; c < d; c += LANES) both += load(g + (start + i) * g_row + c) * load(out.of(start + i) + c);
                weigh_back(lines + i * wide, slopes + i * wide, mask.at ? mask.of(start + i) : nullptr, mask.step, scale,
                           *logs.of(start + i), sum_of(both), limit_of(s, start + i), end_of(s, start + i));
            }
            for (long i = 0; i < rows; i += TALL)
                times<false>(slopes + i * wide, wide, rows - i, key, k_row, limit_of(s, least(start + i + TALL, s.queries) - 1), d,
                             nullptr, scale, dq.of(start + i), dq.row);
            for (long j = 0; j < keys; j += TALL) {
                const long from = s.causal && j > start ? j - start : 0;
                times<true>(lines + from * wide + j, wide, keys - j, g + (start + from) * g_row, g_row, rows - from, d, nullptr, 1.0f,
                            dv.of(j), dv.row);
                times<true>(slopes + from * wide + j, wide, keys - j, query + (start + from) * q_row, q_row, rows - from, d, nullptr,
                            scale, dk.of(j), dk.row);
            }
        }
    }
}

// Products of matrices in pairs. sizes: rows, columns, terms, whether x lies turned, and y; of x and y how far pairs, and rows or
// columns, lie apart. Terms of a turned y are a multiple of LANES. `room` is for (columns + 32) * terms floats.
extern "C" void dptrain_products(const float* x, const float* y, const long* sizes, long first, long many, float* out, float* room) {
    const long m = sizes[0], n = sizes[1], k = sizes[2];
    for (long one = first; one < first + many; ++one) {
        const float *left = x + one * sizes[5], *right = y + one * sizes[7];
        auto run = sizes[3] ? multiply<true> : multiply<false>;
        run(left, sizes[6], right, sizes[8], sizes[4], m, n, k, out + one * m * n, room);
    }
}
