/* Products and attention on a CPU, in float32; `native.py` compiles and calls them.

   A step of few rows is bound by reading the weights and the keys once, so each loop reads them in order,
   asks for what comes next while it computes, and keeps its sums in registers. A row's sums are added
   up in one order whatever the other rows are, so that its result does not depend on them. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <utility>
#include <vector>

#if defined(__AVX512F__)
const int LANES = 16;
#elif defined(__AVX__)
const int LANES = 8;
#else
const int LANES = 4;
#endif
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

const int PANEL = 16;  /* outputs whose weights lie side by side: a cache line for each input */
const int PARTS = PANEL / LANES;
const int AHEAD = 128; /* cache lines to ask for before they are needed; measured */
const int CHUNK = 72;  /* rows that share a reading of the weights */
const int KEYS = 64;   /* whose scores are held */

#define UNROLL _Pragma("GCC unroll 16")

/* A layer's product ------------------------------------------------------------------------------ */

/* Copies weights (num_outputs, num_inputs), of any strides, to panels (ceil(num_outputs / PANEL),
   num_inputs, PANEL), filled up with zeros. */
extern "C" void pack_weights(int64_t num_outputs, int64_t num_inputs, const float *weights,
                             int64_t output_stride, int64_t input_stride, float *panels)
{
    for (int64_t first = 0; first < num_outputs; first += PANEL)
        for (int64_t input = 0; input < num_inputs; input++)
            for (int64_t output = first; output < first + PANEL; output++)
                *panels++ = output < num_outputs
                    ? weights[output * output_stride + input * input_stride] : 0;
}

/* Multiplies `rows` rows, of which `inputs` (num_inputs, rows) holds the columns, with `num` panels;
   stores `stored` of the rows, and `width` outputs of each. */
template <int rows, int num>
static void multiply_tile(int64_t num_inputs, const float *inputs, const float *panels,
                          const float *bias, float *out, int64_t out_stride, int64_t stored,
                          int64_t width)
{
    const int64_t num_bytes = 4 * (width < PANEL * num ? width : PANEL * num);
    floats sums[rows][num][PARTS], first[num][PARTS] = {};
    if (bias)
        memcpy(first, bias, num_bytes);
    for (int row = 0; row < rows; row++)
        memcpy(sums[row], first, sizeof first);
    for (int64_t input = 0; input < num_inputs; input++) {
        UNROLL for (int panel = 0; panel < num; panel++) {
            const float *weights = panels + PANEL * (panel * num_inputs + input);
            __builtin_prefetch(weights + AHEAD * PANEL);
            UNROLL for (int part = 0; part < PARTS; part++) {
                const floats some = *(const floats *)(weights + LANES * part);
                UNROLL for (int row = 0; row < rows; row++)
                    sums[row][panel][part] += inputs[input * rows + row] * some;
            }
        }
    }
    for (int64_t row = 0; row < stored; row++)
        memcpy(out + row * out_stride, sums[row], num_bytes);
}

/* Multiplies up to CHUNK rows, by tiles of `rows` rows and `num` panels: with fewer rows more panels, for
   as many sums as there are registers. `columns` has room for CHUNK * num_inputs. */
template <int rows, int num>
static void multiply_chunk(int64_t num_rows, int64_t num_outputs, int64_t num_inputs,
                           const float *chunk, const float *panels, const float *bias, float *out,
                           float *columns, int threads)
{
    for (int64_t block = 0; block < num_rows; block += rows)
        for (int64_t input = 0; input < num_inputs; input++)
            for (int64_t row = block; row < block + rows; row++)
                columns[block * num_inputs + input * rows + row - block] =
                    row < num_rows ? chunk[row * num_inputs + input] : 0;
    const auto multiply = [&](auto tile, int64_t panel) {
        for (int64_t block = 0; block < num_rows; block += rows)
            tile(num_inputs, columns + block * num_inputs, panels + panel * num_inputs * PANEL,
                 bias ? bias + panel * PANEL : nullptr, out + block * num_outputs + panel * PANEL,
                 num_outputs, num_rows - block < rows ? num_rows - block : rows,
                 num_outputs - panel * PANEL);
    };
    const int64_t num_panels = (num_outputs + PANEL - 1) / PANEL;
    const int64_t num_groups = num_panels / num;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t group = 0; group < num_groups; group++)
        multiply(multiply_tile<rows, num>, group * num);
    for (int64_t panel = num_groups * num; panel < num_panels; panel++)
        multiply(multiply_tile<rows, 1>, panel);
}

/* Writes `rows` (num_rows, num_inputs), contiguous, times the packed weights, plus the bias unless that
   is null, to `out` (num_rows, num_outputs). */
extern "C" void multiply_packed(int64_t num_rows, int64_t num_outputs, int64_t num_inputs,
                                const float *rows, const float *panels, const float *bias,
                                float *out, int threads)
{
    static thread_local std::vector<float> columns;
    if (columns.size() < size_t(CHUNK * num_inputs))
        columns.resize(CHUNK * num_inputs);
    for (int64_t first = 0; first < num_rows; first += CHUNK) {
        const int64_t num = num_rows - first < CHUNK ? num_rows - first : CHUNK;
        const auto multiply = num > 32 ? multiply_chunk<6, 4>
            : num > 8 ? multiply_chunk<16, 1>
            : num > 4 ? multiply_chunk<8, 2>
            : num > 2 ? multiply_chunk<4, 4>
            : num > 1 ? multiply_chunk<2, 4> : multiply_chunk<1, 8>;
        multiply(num, num_outputs, num_inputs, rows + first * num_inputs, panels, bias,
                 out + first * num_outputs, columns.data(), threads);
    }
}

/* Attention -------------------------------------------------------------------------------------- */

/* exp(x) to two units in the last place, for x <= 0, and 0 below e^-87: 2^n times a polynomial in what is
   left (the coefficients are those of Cephes' expf). NaN stays NaN. */
static inline floats exponential(floats x)
{
    const ints is_nothing = x < -87.0f;
    x = is_nothing ? floats{} : x;
    const floats shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds to a whole number */
    const floats whole = shifted - 12582912.0f;
    const floats rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    floats sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    const ints exponent = ((ints)shifted - 0x4b400000 + 127) << 23;
    return is_nothing ? floats{} : sum * (floats)exponent;
}

/* tanh(x), to an absolute error of 1e-7. */
static inline floats tangent(floats x)
{
    const floats zero = {}, shrunk = exponential(x < zero ? 2 * x : -2 * x);
    const floats size = (1 - shrunk) / (1 + shrunk);
    return x < zero ? -size : size;
}

static inline float total(floats x)
{
    float sums[LANES];
    memcpy(sums, &x, sizeof x);
    UNROLL for (int width = LANES / 2; width; width /= 2)
        UNROLL for (int lane = 0; lane < width; lane++)
            sums[lane] += sums[lane + width];
    return sums[0];
}

/* Every second lane of `a`, then of `b`, from the lane `first` on. */
template <int first, int... lanes>
static inline floats every_second(floats a, floats b, std::integer_sequence<int, lanes...>)
{
#ifdef __clang__
    return __builtin_shufflevector(a, b, (first + 2 * lanes)...);
#else
    return __builtin_shuffle(a, b, ints{(first + 2 * lanes)...});
#endif
}

/* The sums of two lanes each of `a`, then of `b`. */
static inline floats pairs(floats a, floats b)
{
    const std::make_integer_sequence<int, LANES> lanes;
    return every_second<0>(a, b, lanes) + every_second<1>(a, b, lanes);
}

/* Writes the totals of four vectors, in half the operations of four times `total`. */
static inline void totals(const floats *each, float *sums)
{
    floats sum = pairs(pairs(each[0], each[1]), pairs(each[2], each[3]));
    UNROLL for (int width = LANES; width > 4; width /= 2)
        sum = pairs(sum, sum);
    memcpy(sums, &sum, 4 * sizeof *sums);
}

static inline int64_t between(int64_t low, int64_t x, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Asks for `size` numbers that will be read soon. */
static inline void ask_for(const float *numbers, int64_t size)
{
    for (int64_t place = 0; place < size; place += 16) /* of a cache line */
        __builtin_prefetch(numbers + place);
}

/* Writes the products of a query with `num` keys, contiguous, four at a time for as many sums; asks for
   as many rows of `next`, of `next_size`. */
static void scores_of(const float *query, const float *keys, int64_t size, int64_t num,
                      float *scores, const float *next, int64_t next_size)
{
    for (int64_t key = 0; key < num; key += 4) {
        floats sums[4] = {};
        const float *each[4];
        UNROLL for (int i = 0; i < 4; i++)
            each[i] = keys + (key + i < num ? key + i : num - 1) * size;
        ask_for(next + key * next_size, 4 * next_size);
        int64_t place = 0;
        for (; place + LANES <= size; place += LANES)
            UNROLL for (int i = 0; i < 4; i++)
                sums[i] += *(const floats *)(query + place) * *(const floats *)(each[i] + place);
        totals(sums, scores + key);
        for (; place < size; place++)
            for (int i = 0; i < 4; i++)
                scores[key + i] += query[place] * each[i][place];
    }
}

/* Adds `num` rows, each times its weight, to `sum`: `parts` vectors of every row, which are `size`
   numbers apart; asks for as many rows of `next`, of `next_size`. */
template <int parts>
static void add_part(const float *weights, const float *rows, int64_t size, int64_t num, float *sum,
                     const float *next, int64_t next_size)
{
    floats sums[parts];
    memcpy(sums, sum, sizeof sums);
    for (int64_t row = 0; row < num; row++) {
        ask_for(next + row * next_size, next_size);
        UNROLL for (int part = 0; part < parts; part++)
            sums[part] += weights[row] * *(const floats *)(rows + row * size + part * LANES);
    }
    memcpy(sum, sums, sizeof sums);
}

/* Adds `num` values, contiguous, each times its weight, to `sum`; asks for as many rows of `next`. */
static void add_weighted(const float *weights, const float *values, int64_t size, int64_t num,
                         float *sum, const float *next, int64_t next_size)
{
    int64_t place = 0;
    for (; place + 4 * LANES <= size; place += 4 * LANES, next_size = 0)
        add_part<4>(weights, values + place, size, num, sum + place, next, next_size);
    for (; place + LANES <= size; place += LANES, next_size = 0)
        add_part<1>(weights, values + place, size, num, sum + place, next, next_size);
    for (int64_t key = 0; key < num && place < size; key++)
        for (int64_t rest = place; rest < size; rest++)
            sum[rest] += weights[key] * values[key * size + rest];
}

struct Layer {
    const float *keys, *values;                     /* (lanes, num_kv_heads, capacity, size) */
    int64_t num_heads, num_kv_heads, capacity;      /* capacity: tokens of a lane */
    int64_t key_size, value_size;
    int64_t window;                                 /* most keys that a query sees; 0: all */
    float scaling, softcap;                         /* softcap 0: none */
    const float *sinks;                             /* (num_heads,), or null */
    int32_t threads;
};

/* Stores what the heads of fed tokens have, strided by token and head, in their cells (lanes, num_heads,
   capacity, size). */
extern "C" void store(float *cells, int64_t num_heads, int64_t capacity, int64_t size,
                      int64_t num_tokens, const int64_t *lanes, const int64_t *offsets,
                      const float *fed, int64_t token_stride, int64_t head_stride)
{
    for (int64_t token = 0; token < num_tokens; token++)
        for (int64_t head = 0; head < num_heads; head++)
            memcpy(cells + ((lanes[token] * num_heads + head) * capacity + offsets[token]) * size,
                   fed + token * token_stride + head * head_stride, 4 * size);
}

/* Lets one query, of head `head`, see the keys from `first` to `end` of its lane. The softmax is computed
   chunk by chunk, rescaled whenever a larger score appears (Milakov and Gimelshein, "Online normalizer
   calculation for softmax", 2018). */
static void attend_one(const Layer *layer, const float *query, int64_t head, int64_t lane,
                       int64_t first, int64_t end, float *out)
{
    const int64_t kv_head = head / (layer->num_heads / layer->num_kv_heads);
    const int64_t start = (lane * layer->num_kv_heads + kv_head) * layer->capacity;
    float highest = layer->sinks ? layer->sinks[head] : -INFINITY;
    float shares = layer->sinks ? 1 : 0;
    float scores[KEYS] __attribute__((aligned(64))) = {};
    memset(out, 0, 4 * layer->value_size);
    /* Chunks of one size, so that each asks for all that the next will read. */
    const int64_t begin = first, num_chunks = (end - begin + KEYS - 1) / KEYS;
    const int64_t size = (end - begin + num_chunks - 1) / num_chunks;
    const bool is_first = head % (layer->num_heads / layer->num_kv_heads) == 0; /* to read these keys */
    for (; first < end; first += size) {
        const int64_t num = end - first < size ? end - first : size;
        float before = highest;
        const float *keys = layer->keys + (start + first) * layer->key_size;
        const float *values = layer->values + (start + first) * layer->value_size;
        scores_of(query, keys, layer->key_size, num, scores, values, is_first ? layer->value_size : 0);
        for (int64_t key = 0; key < num; key += LANES) {
            floats *some = (floats *)(scores + key);
            *some *= layer->scaling;
            if (layer->softcap != 0)
                *some = layer->softcap * tangent(*some / layer->softcap);
        }
        for (int64_t key = 0; key < num; key++)
            highest = scores[key] > highest ? scores[key] : highest;
        for (int64_t key = num; key % LANES; key++)
            scores[key] = -INFINITY;
        floats sum = {};
        for (int64_t key = 0; key < num; key += LANES) {
            floats *some = (floats *)(scores + key);
            *some = exponential(*some - highest);
            sum += *some;
        }
        if (before != highest) {
            const float factor = expf(before - highest);
            shares *= factor;
            for (int64_t place = 0; place < layer->value_size; place++)
                out[place] *= factor;
        }
        shares += total(sum);
        /* The next keys are those behind these, or the first ones that the next head sees. */
        const int64_t ahead = first + num < end ? num : layer->capacity + begin - first;
        add_weighted(scores, values, layer->value_size, num, out, keys + ahead * layer->key_size,
                     is_first ? layer->key_size : 0);
    }
    for (int64_t place = 0; place < layer->value_size; place++)
        out[place] /= shares;
}

/* Lets the query of each row (its token among those of `queries`, its lane, and how many keys are there)
   see the keys of its lane; writes to the rows of `out` (tokens, num_heads, value_size), contiguous. */
extern "C" void attend_rows(const Layer *layer, int64_t num_rows, const int64_t *tokens,
                            const int64_t *lanes, const int64_t *seq_lens, const float *queries,
                            int64_t query_stride, int64_t query_head_stride, float *out)
{
#pragma omp parallel for collapse(2) num_threads(layer->threads) if (layer->threads > 1)
    for (int64_t row = 0; row < num_rows; row++)
        for (int64_t head = 0; head < layer->num_heads; head++) {
            const int64_t end = seq_lens[row];
            const int64_t first = layer->window && end > layer->window ? end - layer->window : 0;
            attend_one(layer, queries + tokens[row] * query_stride + head * query_head_stride, head,
                       lanes[row], first, end,
                       out + (tokens[row] * layer->num_heads + head) * layer->value_size);
        }
}

/* The rest has a block of LANES queries, of which each vector holds one number of every query. */

/* Adds the products of `num` vectors with the numbers of `rows` rows, to as many sums: those of row r are
   numbers[r * row_stride + i * stride]. */
template <int rows>
static inline void add_products(const floats *vectors, int64_t num, const float *numbers,
                                int64_t row_stride, int64_t stride, floats *sums)
{
    floats some[rows];
    memcpy(some, sums, sizeof some);
    for (int64_t i = 0; i < num; i++)
        UNROLL for (int row = 0; row < rows; row++)
            some[row] += vectors[i] * numbers[row * row_stride + i * stride];
    memcpy(sums, some, sizeof some);
}

static void add_all_products(const floats *vectors, int64_t num, int64_t num_rows, const float *numbers,
                             int64_t row_stride, int64_t stride, floats *sums)
{
    int64_t row = 0;
    for (; row + 16 <= num_rows; row += 16)
        add_products<16>(vectors, num, numbers + row * row_stride, row_stride, stride, sums + row);
    for (; row + 4 <= num_rows; row += 4)
        add_products<4>(vectors, num, numbers + row * row_stride, row_stride, stride, sums + row);
    for (; row < num_rows; row++)
        add_products<1>(vectors, num, numbers + row * row_stride, row_stride, stride, sums + row);
}

/* Which of the queries, that of lane 0 at `position`, see a key. */
static inline ints seen_by_lanes(int64_t key, int64_t position, int64_t window)
{
    ints lanes;
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = lane;
    const int32_t offset = key - position;
    return (lanes >= offset) & (lanes < offset + int32_t(window));
}

/* Lets `num` queries, strided, of one head, at `position` and behind it, see the keys up to their own. */
static void attend_block(const Layer *layer, int64_t lane, int64_t head, int64_t position, int64_t num,
                         const float *queries, int64_t stride, float *out, int64_t out_stride)
{
    const int64_t key_size = layer->key_size, value_size = layer->value_size;
    const int64_t kv_head = head / (layer->num_heads / layer->num_kv_heads);
    const int64_t start = (lane * layer->num_kv_heads + kv_head) * layer->capacity;
    const int64_t window = layer->window ? layer->window : INT32_MAX / 2;
    floats scaled[key_size], results[value_size], scores[KEYS];
    floats highest = floats{} + (layer->sinks ? layer->sinks[head] : -1e30f);
    floats shares = floats{} + (layer->sinks ? 1.0f : 0.0f);
    memset(scaled, 0, sizeof scaled);
    memset(results, 0, sizeof results);
    for (int64_t place = 0; place < key_size; place++)
        for (int64_t query = 0; query < num; query++)
            scaled[place][query] = queries[query * stride + place] * layer->scaling;
    const int64_t end = position + num;
    for (int64_t first = position >= window ? position - window + 1 : 0; first < end; first += KEYS) {
        const int64_t num_keys = end - first < KEYS ? end - first : KEYS;
        const float *keys = layer->keys + (start + first) * key_size;
        const float *values = layer->values + (start + first) * value_size;
        memset(scores, 0, sizeof scores);
        add_all_products(scaled, key_size, num_keys, keys, key_size, 1, scores);
        /* The keys between `all` and `some` are seen by all queries. */
        const int64_t all = between(0, position + LANES - window - first, num_keys);
        const int64_t some = between(all, position + 1 - first, num_keys);
        const floats before = highest;
        for (int64_t key = 0; key < num_keys; key++) {
            if (layer->softcap != 0)
                scores[key] = layer->softcap * tangent(scores[key] / layer->softcap);
            if (key < all || key >= some)
                scores[key] = seen_by_lanes(first + key, position, window)
                    ? scores[key] : floats{} - INFINITY;
            highest = scores[key] > highest ? scores[key] : highest;
        }
        const floats factor = exponential(before - highest);
        shares *= factor;
        for (int64_t place = 0; place < value_size; place++)
            results[place] *= factor;
        for (int64_t key = 0; key < num_keys; key++) {
            scores[key] = exponential(scores[key] - highest);
            shares += scores[key];
        }
        add_all_products(scores + all, some - all, value_size, values + all * value_size, 1, value_size,
                         results);
        for (int64_t key = all ? 0 : some; key < num_keys; key = key + 1 == all ? some : key + 1) {
            /* A weight of zero does not cancel a NaN. */
            const ints seen = seen_by_lanes(first + key, position, window);
            for (int64_t place = 0; place < value_size; place++)
                results[place] += seen ? scores[key] * values[key * value_size + place] : floats{};
        }
    }
    for (int64_t place = 0; place < value_size; place++)
        for (int64_t query = 0; query < num; query++)
            out[query * out_stride + place] = results[place][query] / shares[query];
}

/* Lets the queries of a span of one lane, of which `context_len` tokens precede it, see the keys up to
   their own; writes to `out` (query_len, num_heads, value_size), contiguous. */
extern "C" void attend_span(const Layer *layer, int64_t lane, int64_t context_len, int64_t query_len,
                            const float *queries, int64_t query_stride, int64_t query_head_stride,
                            float *out)
{
    const int64_t num_blocks = (query_len + LANES - 1) / LANES;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(layer->threads) \
    if (layer->threads > 1)
    for (int64_t head = 0; head < layer->num_heads; head++)
        for (int64_t block = 0; block < num_blocks; block++) {
            const int64_t query = block * LANES, left = query_len - query;
            attend_block(layer, lane, head, context_len + query, left < LANES ? left : LANES,
                         queries + query * query_stride + head * query_head_stride, query_stride,
                         out + (query * layer->num_heads + head) * layer->value_size,
                         layer->num_heads * layer->value_size);
        }
}
