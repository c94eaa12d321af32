/* A decoder on a CPU, in float32: products, attention, and what is between them. `native.py` compiles
   and calls it.

   A step of few rows is bound by reading the weights and the keys once, so each loop reads them in order,
   asks for what comes next while it computes, and keeps its sums in registers. What a row adds up, it
   adds up in one order whatever the other rows are and however many threads there are, so that its
   result depends on neither. */

#include <float.h>
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
const int AHEAD = 128; /* cache lines to ask for before a tile needs them that is alone; measured */
const int CHUNK = 72;  /* rows that share a reading of the weights, and intermediate results */
const int DEPTH = 1024; /* inputs whose weights stay in the cache while all rows read them; measured */
const int KEYS = 64;   /* whose scores are held: those from a multiple of it on */

/* The rows of a tile of attention, and the panels that it reads at once: as many sums as there are
   registers. */
const int TILE = PARTS == 1 ? 12 : 4;
template <int rows>
const int WIDE = PARTS > 1 ? 1 : rows > 6 ? 2 : 4;

#define UNROLL _Pragma("GCC unroll 16")

/* Products --------------------------------------------------------------------------------------- */

template <int rows, int num>
struct Sums {
    floats of[rows][num][PARTS];
};

/* Adds `count` terms to the sums of `rows` rows over `num` panels, one after another: term i of row r is
   factors[i * step + r * row_step] times PANEL numbers from vectors[i * stride + panel * panel_stride] on.
   With term i it asks for the line i * soon_step bytes behind `soon`, and that of each other panel, for the
   cache of this level. */
template <int level, int rows, int num>
static inline __attribute__((always_inline)) void
add_products(Sums<rows, num> &sums, int64_t count, const float *factors, int64_t step, int64_t row_step,
             const float *vectors, int64_t stride, int64_t panel_stride, const char *soon,
             int64_t soon_step)
{
    for (int64_t i = 0; i < count; i++) {
        floats numbers[num][PARTS];
        UNROLL for (int panel = 0; panel < num; panel++) {
            const float *some = vectors + i * stride + panel * panel_stride;
            __builtin_prefetch(soon + 4 * panel * panel_stride + i * soon_step, 0, 4 - level);
            UNROLL for (int part = 0; part < PARTS; part++)
                numbers[panel][part] = *(const floats *)(some + LANES * part);
        }
        /* Row by row, so that one factor is held at a time: with a factor for each row held, sums of more
           than seven rows do not fit beside them. */
        UNROLL for (int row = 0; row < rows; row++) {
            const float factor = factors[i * step + row * row_step];
            UNROLL for (int panel = 0; panel < num; panel++)
                UNROLL for (int part = 0; part < PARTS; part++)
                    sums.of[row][panel][part] += factor * numbers[panel][part];
        }
    }
}

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

/* A product of rows with packed weights (num_outputs, num_inputs), plus the bias unless it is null. */
struct Product {
    int64_t num_outputs, num_inputs;
    const float *panels, *bias;
    int64_t is_added;                               /* to what is in `out` */
};

/* Stores the sums of the first `stored` rows as the outputs of `num` panels from `first` on. */
template <int rows, int num>
static void store_sums(const Product &by, Sums<rows, num> &sums, int64_t first, float *out,
                       int64_t out_stride, int64_t stored)
{
    const int64_t left = by.num_outputs - first, width = left < PANEL * num ? left : PANEL * num;
    if (left >= PANEL * num) { /* from registers: to copy a number of them that is not known takes longer */
        UNROLL for (int row = 0; row < rows; row++)
            if (row < stored)
                UNROLL for (int each = 0; each < num * PARTS; each++) {
                    floats &place = *(floats *)(out + row * out_stride + first + LANES * each);
                    const floats sum = sums.of[row][each / PARTS][each % PARTS];
                    place = by.is_added ? sum + place : sum;
                }
        return;
    }
    for (int64_t row = 0; row < stored; row++) {
        float *place = out + row * out_stride + first;
        if (by.is_added) {
            Sums<1, num> before = {};
            memcpy(&before, place, 4 * width);
            UNROLL for (int each = 0; each < num * PARTS; each++)
                sums.of[row][each / PARTS][each % PARTS] += before.of[0][each / PARTS][each % PARTS];
        }
        memcpy(place, sums.of[row], 4 * width);
    }
}

/* Multiplies up to CHUNK rows with `num` panels from `panel` on. `columns` holds the columns of each tile
   of `rows` rows, (num_inputs, rows). All tiles read DEPTH inputs' weights before the next are read. */
template <int rows, int num>
static void multiply_panels(const Product &by, int64_t panel, int64_t num_rows, const float *columns,
                            float *out, int64_t out_stride)
{
    const int64_t first = panel * PANEL, left = by.num_outputs - first;
    Sums<1, num> initial = {};
    if (by.bias)
        memcpy(&initial, by.bias + first, 4 * (left < PANEL * num ? left : PANEL * num));
    Sums<rows, num> kept[CHUNK / rows + 1]; /* of each tile */
    const int64_t num_tiles = (num_rows + rows - 1) / rows, depth = num_tiles > 1 ? DEPTH : by.num_inputs;
    for (int64_t input = 0; input < by.num_inputs; input += depth) {
        const int64_t rest = by.num_inputs - input, count = rest < depth ? rest : depth;
        const float *const weights = by.panels + first * by.num_inputs + input * PANEL;
        /* What is read next; each of several tiles asks for a part, so that memory is never idle. */
        const int64_t ahead = num_tiles == 1 ? AHEAD : count < rest ? count : num * by.num_inputs - input;
        const char *const soon = (const char *)(weights + ahead * PANEL);
        const int64_t soon_step = 4 * PANEL / num_tiles;
        for (int64_t row = 0; row < num_rows; row += rows) {
            Sums<rows, num> sums;
            for (int each = 0; each < rows; each++)
                memcpy(sums.of[each], &initial, sizeof initial);
            if (input)
                sums = kept[row / rows];
            add_products<1>(sums, count, columns + row * by.num_inputs + input * rows, rows, 1, weights,
                            PANEL, PANEL * by.num_inputs, soon + row / rows * count * soon_step, soon_step);
            if (count < rest)
                kept[row / rows] = sums;
            else
                store_sums(by, sums, first, out + row * out_stride, out_stride,
                           num_rows - row < rows ? num_rows - row : rows);
        }
    }
}

/* Multiplies up to CHUNK rows, by tiles of `rows` rows and `num` panels. */
template <int rows, int num>
static void multiply_chunk(const Product &by, int64_t num_rows, const float *in, int64_t stride,
                           float *out, int64_t out_stride, float *columns)
{
    for (int64_t first = 0; first < num_rows; first += rows) {
        const float *row[rows]; /* a tile that is not full repeats the last */
        for (int64_t each = 0; each < rows; each++)
            row[each] = in + (first + each < num_rows ? first + each : num_rows - 1) * stride;
        float *column = columns + first * by.num_inputs;
        for (int64_t input = 0; input < by.num_inputs; input++)
            UNROLL for (int each = 0; each < rows; each++)
                *column++ = row[each][input];
    }
    const int64_t num_panels = (by.num_outputs + PANEL - 1) / PANEL, num_groups = num_panels / num;
    const int64_t left = num_panels - num_groups * num;
#pragma omp for
    for (int64_t each = 0; each < num_groups + left; each++) {
        if (each < num_groups)
            multiply_panels<rows, num>(by, each * num, num_rows, columns, out, out_stride);
        else
            multiply_panels<rows, 1>(by, each - num_groups + num_groups * num, num_rows, columns, out,
                                     out_stride);
    }
}

/* The most rows of a tile that is alone, and how many panels one has: for as many sums as there are registers
   beside the numbers of a line and a factor. */
const int MOST_ROWS = PARTS == 1 ? 14 : 6;

constexpr int panels_for(int rows)
{
    const int num = PARTS == 1 ? 31 / (rows + 1) : 12 / PARTS / rows;
    return num < 1 ? 1 : num > 8 ? 8 : num;
}

typedef void MultiplyChunk(const Product &, int64_t, const float *, int64_t, float *, int64_t, float *);

template <int... rows>
static MultiplyChunk *by_rows(int64_t num, std::integer_sequence<int, rows...>)
{
    static MultiplyChunk *const each[] = {multiply_chunk<rows + 1, panels_for(rows + 1)>...};
    return each[num - 1];
}

/* How many rows a tile has, for the least rows that are computed in vain. Of many tiles those of 6 to 9 rows
   are the fastest, measured: they load the least for a product. */
static int64_t rows_of_tile(int64_t num_rows)
{
    if (num_rows <= MOST_ROWS)
        return num_rows;
    int64_t best = PARTS == 1 ? 9 : MOST_ROWS;
    for (int64_t rows = best - 1; rows >= 6; rows--)
        if ((num_rows + rows - 1) / rows * rows < (num_rows + best - 1) / best * best)
            best = rows;
    return best;
}

/* Memory that is kept, and grows. It begins with a cache line, for a vector that lies across two takes
   twice as long. */
static float *scratch(std::vector<float> &kept, size_t size)
{
    if (kept.size() < size + 16)
        kept.resize(size + 16);
    return (float *)(((uintptr_t)kept.data() + 63) / 64 * 64);
}

/* Multiplies the rows of `in`, `stride` apart, to those of `out`. Each thread has columns of its own:
   to wait for others would take longer. */
static void multiply(const Product &by, int64_t num_rows, const float *in, int64_t stride, float *out,
                     int64_t out_stride)
{
    static thread_local std::vector<float> kept;
    float *const columns = scratch(kept, (CHUNK + MOST_ROWS) * by.num_inputs);
    const std::make_integer_sequence<int, MOST_ROWS> all;
    for (int64_t first = 0; first < num_rows; first += CHUNK) {
        const int64_t num = num_rows - first < CHUNK ? num_rows - first : CHUNK;
        by_rows(rows_of_tile(num), all)(by, num, in + first * stride, stride, out + first * out_stride,
                                        out_stride, columns);
    }
}

/* Writes `rows` (num_rows, num_inputs), contiguous, times the packed weights to `out` (num_rows,
   num_outputs). */
extern "C" void multiply_packed(const Product *by, int64_t num_rows, const float *rows, float *out,
                                int threads)
{
#pragma omp parallel num_threads(threads) if (threads > 1)
    multiply(*by, num_rows, rows, by->num_inputs, out, by->num_outputs);
}

/* Writes a sum for each `group` of words, and one of those that are left: of each word times a number that
   belongs to its place, so that neither other signs nor another order leave it as it was. */
extern "C" void sum_words(int64_t num, int64_t group, const uint32_t *words, uint64_t *sums, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first <= num; first += group) {
        uint64_t sum = 0;
        for (int64_t place = first; place < first + group && place < num; place++)
            sum += uint64_t(words[place]) * (uint32_t(place) * 2654435761u | 1);
        sums[first / group] = sum;
    }
}

/* Functions of vectors --------------------------------------------------------------------------- */

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

static inline float greatest(floats x)
{
    float some[LANES];
    memcpy(some, &x, sizeof x);
    UNROLL for (int width = LANES / 2; width; width /= 2)
        UNROLL for (int lane = 0; lane < width; lane++)
            some[lane] = some[lane] > some[lane + width] ? some[lane] : some[lane + width];
    return some[0];
}

/* Attention -------------------------------------------------------------------------------------- */

/* The cells of a layer. Keys lie in panels, as packed weights do: (lanes, num_kv_heads, capacity / PANEL,
   key_size, PANEL); values (lanes, num_kv_heads, capacity, value_stride), zeros behind value_size. */
struct Layer {
    float *keys, *values;
    int64_t num_heads, num_kv_heads;
    int64_t capacity;                               /* tokens of a lane, a multiple of PANEL */
    int64_t key_size, value_size, value_stride;     /* value_stride: a multiple of PANEL */
    int64_t window;                                 /* most keys that a query sees; 0: all */
    float scaling, softcap;                         /* softcap 0: none */
    const float *sinks;                             /* (num_heads,), or null */
};

/* Where tokens are. A place is lane * capacity + offset. */
struct Tokens {
    int64_t num;
    const int64_t *places;                          /* (num,) where their own keys go */
    const int64_t *seq_lens;                        /* (num,) how many keys they see, their own last */
    const int64_t *tables;                          /* (num,) the row of `scattered`; -1: straight, so
                                                       that all keys are in one lane, in order */
    const int64_t *scattered;                       /* (rows, table_size) places of keys */
    int64_t table_size;
};

static inline float *key_cell(const Layer &layer, int64_t place, int64_t head)
{
    const int64_t lane = place / layer.capacity, offset = place % layer.capacity;
    const int64_t start = (lane * layer.num_kv_heads + head) * layer.capacity + offset / PANEL * PANEL;
    return layer.keys + start * layer.key_size + offset % PANEL;
}

static inline float *value_cell(const Layer &layer, int64_t place, int64_t head)
{
    const int64_t lane = place / layer.capacity, offset = place % layer.capacity;
    const int64_t start = (lane * layer.num_kv_heads + head) * layer.capacity + offset;
    return layer.values + start * layer.value_stride;
}

/* Stores the keys and values of tokens, strided by token and head. */
static void store_tokens(const Layer &layer, const Tokens &tokens, const float *keys, int64_t stride,
                         int64_t head_stride, const float *values, int64_t value_stride,
                         int64_t value_head_stride)
{
#pragma omp for
    for (int64_t head = 0; head < layer.num_kv_heads; head++)
        for (int64_t token = 0, num; token < tokens.num; token += num) {
            /* Tokens of one panel together: each number of a key has a cache line of its own. */
            const int64_t place = tokens.places[token], most = PANEL - place % layer.capacity % PANEL;
            for (num = 1; num < most && token + num < tokens.num; num++)
                if (tokens.places[token + num] != place + num)
                    break;
            const float *some = keys + token * stride + head * head_stride;
            float *const cells = key_cell(layer, place, head);
            for (int64_t each = 0; each < layer.key_size; each++)
                for (int64_t one = 0; one < num; one++)
                    cells[each * PANEL + one] = some[one * stride + each];
            for (int64_t one = 0; one < num; one++)
                memcpy(value_cell(layer, place + one, head),
                       values + (token + one) * value_stride + head * value_head_stride,
                       4 * layer.value_size);
        }
}

/* The keys and values that a query sees from `first`, a multiple of KEYS, on. */
struct Chunk {
    const float *keys, *values;
};

/* Finds the `num` keys from `first` on; copies them to `keys` and `values` if they are scattered. */
static Chunk chunk_of(const Layer &layer, const Tokens &tokens, int64_t token, int64_t head,
                      int64_t first, int64_t num, float *keys, float *values)
{
    if (tokens.tables[token] < 0) {
        const int64_t place = tokens.places[token] / layer.capacity * layer.capacity + first;
        return {key_cell(layer, place, head), value_cell(layer, place, head)};
    }
    const int64_t *places = tokens.scattered + tokens.tables[token] * tokens.table_size + first;
    for (int64_t key = 0; key < num; key++) {
        const float *cell = key_cell(layer, places[key], head);
        for (int64_t each = 0; each < layer.key_size; each++)
            keys[(key / PANEL * layer.key_size + each) * PANEL + key % PANEL] = cell[each * PANEL];
        memcpy(values + key * layer.value_stride, value_cell(layer, places[key], head),
               4 * layer.value_stride);
    }
    return {keys, values};
}

/* Adds values (count, stride), each times its weight, to the sums (rows, stride) of rows. */
template <int rows, int num>
static inline void add_panels(float *sums, int64_t from, const float *weights, int64_t count,
                              const float *values, int64_t stride, int64_t ahead)
{
    Sums<rows, num> some;
    UNROLL for (int row = 0; row < rows; row++)
        memcpy(some.of[row], sums + row * stride + from, sizeof some.of[row]);
    add_products<2>(some, count, weights, 1, KEYS, values + from, stride, PANEL,
                    (const char *)(values + from + ahead), 4 * stride);
    UNROLL for (int row = 0; row < rows; row++)
        memcpy(sums + row * stride + from, some.of[row], sizeof some.of[row]);
}

template <int rows>
static void add_values(float *sums, const float *weights, int64_t count, const float *values,
                       int64_t stride, int64_t ahead)
{
    int64_t from = 0;
    for (; from + WIDE<rows> * PANEL <= stride; from += WIDE<rows> * PANEL)
        add_panels<rows, WIDE<rows>>(sums, from, weights, count, values, stride, ahead);
    for (; from + 2 * PANEL <= stride && WIDE<rows> > 2; from += 2 * PANEL)
        add_panels<rows, 2>(sums, from, weights, count, values, stride, ahead);
    for (; from < stride; from += PANEL)
        add_panels<rows, 1>(sums, from, weights, count, values, stride, ahead);
}

/* Writes the products of queries, whose columns are (key_size, rows), with panels of keys. */
template <int rows, int num>
static inline void score_panels(const float *columns, int64_t size, const float *keys, int64_t ahead,
                                float *scores)
{
    Sums<rows, num> sums = {};
    add_products<2>(sums, size, columns, rows, 1, keys, PANEL, PANEL * size, (const char *)(keys + ahead),
                    4 * PANEL);
    UNROLL for (int row = 0; row < rows; row++)
        memcpy(scores + row * KEYS, sums.of[row], sizeof sums.of[row]);
}

/* Turns a row's scores into weights, of which those that it does not see, before `from` and from `to`
   on, are zero. The softmax is computed chunk by chunk, and rescaled by the factor that it returns (Milakov
   and Gimelshein, "Online normalizer calculation for softmax", 2018). */
static inline float weigh(const Layer &layer, float *scores, int64_t num_panels, int64_t from, int64_t to,
                          float &highest, floats *shares)
{
    const float before = highest;
    floats largest = floats{} + before;
    ints lanes;
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = lane;
    for (int64_t key = 0; key < num_panels * PANEL; key += LANES) {
        floats &some = *(floats *)(scores + key);
        some *= layer.scaling;
        if (layer.softcap != 0)
            some = layer.softcap * tangent(some / layer.softcap);
        if (key < from || key + LANES > to)
            some = (lanes >= int32_t(from - key)) & (lanes < int32_t(to - key))
                ? some : floats{} - INFINITY;
        largest = some > largest ? some : largest;
    }
    highest = greatest(largest);
    const float factor = before == highest ? 1 : exponential(floats{} + (before - highest))[0];
    for (int part = 0; part < PARTS; part++)
        shares[part] *= factor;
    for (int64_t key = 0; key < num_panels * PANEL; key += LANES) {
        floats &some = *(floats *)(scores + key);
        some = exponential(some - highest);
        shares[key / LANES % PARTS] += some;
    }
    return factor;
}

/* Queries of one lane that read the same keys: rows of (token, head), the heads of a token side by side. */
struct Tile {
    int64_t token, row;                             /* the run's first token; the first row in it */
};

/* Lets `rows` queries see the keys of one head. */
template <int rows>
static void attend_tile(const Layer &layer, const Tokens &tokens, Tile tile, int64_t kv_head,
                        const float *queries, int64_t stride, int64_t head_stride, float *out,
                        int64_t out_stride)
{
    const int64_t group = layer.num_heads / layer.num_kv_heads, size = layer.key_size;
    const int64_t value_stride = layer.value_stride;
    int64_t token[rows], head[rows], begin[rows], end[rows];
    float highest[rows];
    floats shares[rows][PARTS] = {};
    alignas(64) floats weights[rows][KEYS / LANES];
    static thread_local std::vector<float> kept; /* heads may be larger than a stack */
    float *const results = scratch(kept, (rows + KEYS) * (size + value_stride));
    float *const gathered_values = results + rows * value_stride;
    float *const gathered_keys = gathered_values + KEYS * value_stride;
    float *const columns = gathered_keys + KEYS * size;
    memset(results, 0, 4 * rows * value_stride);
    for (int row = 0; row < rows; row++) {
        token[row] = tile.token + (tile.row + row) / group;
        head[row] = kv_head * group + (tile.row + row) % group;
        end[row] = tokens.seq_lens[token[row]];
        begin[row] = layer.window && end[row] > layer.window ? end[row] - layer.window : 0;
        highest[row] = layer.sinks ? layer.sinks[head[row]] : -FLT_MAX;
        const float *query = queries + token[row] * stride + head[row] * head_stride;
        for (int64_t place = 0; place < size; place++)
            columns[place * rows + row] = query[place];
    }
    if (layer.sinks)
        for (int row = 0; row < rows; row++)
            shares[row][0][0] = 1;
    /* Rows are in order, so the first begins and ends first. */
    const int64_t first_key = begin[0] / KEYS * KEYS;
    for (int64_t first = first_key; first < end[rows - 1]; first += KEYS) {
        const int64_t left = end[rows - 1] - first, num_keys = left < KEYS ? left : KEYS;
        const int64_t num_panels = (num_keys + PANEL - 1) / PANEL;
        const Chunk chunk = chunk_of(layer, tokens, token[0], kv_head, first, num_keys, gathered_keys,
                                     gathered_values);
        int64_t panel = 0;
        float *scores = (float *)weights;
        const int64_t ahead = first + KEYS < end[rows - 1] ? KEYS : layer.capacity + first_key - first;
        for (; panel + WIDE<rows> <= num_panels; panel += WIDE<rows>)
            score_panels<rows, WIDE<rows>>(columns, size, chunk.keys + panel * size * PANEL, ahead * size,
                                           scores + panel * PANEL);
        for (; panel < num_panels; panel++)
            score_panels<rows, 1>(columns, size, chunk.keys + panel * size * PANEL, ahead * size,
                                  scores + panel * PANEL);
        int64_t from[rows], to[rows];
        for (int row = 0; row < rows; row++) {
            from[row] = begin[row] < first ? 0 : begin[row] - first < num_keys ? begin[row] - first : num_keys;
            to[row] = end[row] - first < num_keys ? end[row] - first : num_keys;
            to[row] = to[row] > from[row] ? to[row] : from[row];
            const float factor = weigh(layer, scores + row * KEYS, num_panels, from[row], to[row],
                                       highest[row], shares[row]);
            if (factor != 1)
                for (int64_t place = 0; place < value_stride; place++)
                    results[row * value_stride + place] *= factor;
        }
        /* All rows see the keys between `all` and `some`. One that is not seen may be NaN, which a weight
           of zero does not cancel. */
        const int64_t all = from[rows - 1] < to[0] ? from[rows - 1] : to[0], some = to[0];
        for (int row = 0; row < rows; row++)
            if (from[row] < all)
                add_values<1>(results + row * value_stride, scores + row * KEYS + from[row],
                              all - from[row], chunk.values + from[row] * value_stride, value_stride, ahead * value_stride);
        add_values<rows>(results, scores + all, some - all, chunk.values + all * value_stride, value_stride,
                         ahead * value_stride);
        for (int row = 0; row < rows; row++) {
            const int64_t next = from[row] > some ? from[row] : some;
            if (next < to[row])
                add_values<1>(results + row * value_stride, scores + row * KEYS + next, to[row] - next,
                              chunk.values + next * value_stride, value_stride, ahead * value_stride);
        }
    }
    for (int row = 0; row < rows; row++) {
        float sum = 0;
        for (int part = 0; part < PARTS; part++)
            sum += total(shares[row][part]);
        float *place = out + token[row] * out_stride + head[row] * layer.value_size;
        for (int64_t each = 0; each < layer.value_size; each++)
            place[each] = results[row * value_stride + each] / sum;
    }
}

/* Lets the queries of tokens, strided by token and head, see the keys of their sequences; writes to `out`
   (num, num_heads * value_size), strided by token. Tokens of a sequence that follow one another share
   readings of keys. */
static void attend_tokens(const Layer &layer, const Tokens &tokens, const float *queries, int64_t stride,
                          int64_t head_stride, float *out, int64_t out_stride)
{
    const int64_t group = layer.num_heads / layer.num_kv_heads;
    static thread_local std::vector<Tile> tiles; /* of each thread, all of them */
    tiles.clear();
    for (int64_t token = 0, next; token < tokens.num; token = next) {
        const int64_t lane = tokens.places[token] / layer.capacity;
        for (next = token + 1; next < tokens.num; next++)
            if (tokens.seq_lens[next] != tokens.seq_lens[next - 1] + 1
                || tokens.tables[next] != tokens.tables[token]
                || (tokens.tables[token] < 0 && tokens.places[next] / layer.capacity != lane))
                break;
        for (int64_t row = 0; row < (next - token) * group;) {
            tiles.push_back({token, row});
            const int64_t left = (next - token) * group - row;
            row += left >= TILE ? TILE : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        }
        tiles.push_back({-1, (next - token) * group}); /* where the run ends */
    }
    const int64_t num_tiles = tiles.size();
    const Tile *each = tiles.data();
#pragma omp for schedule(dynamic) collapse(2)
    for (int64_t index = 0; index < num_tiles; index++)
        for (int64_t head = 0; head < layer.num_kv_heads; head++) {
            const Tile tile = each[index];
            if (tile.token < 0)
                continue;
            const int64_t num = each[index + 1].row - tile.row;
            const auto attend = num == TILE ? attend_tile<TILE>
                : num == 4 ? attend_tile<4> : num == 2 ? attend_tile<2> : attend_tile<1>;
            attend(layer, tokens, tile, head, queries, stride, head_stride, out, out_stride);
        }
}

/* Stores the keys and values of tokens, strided by token and head, and lets their queries see those of
   their sequences; writes to `out` (num, num_heads, value_size), contiguous. */
extern "C" void attend(const Layer *layer, const Tokens *tokens, const float *queries, int64_t stride,
                       int64_t head_stride, const float *keys, int64_t key_stride,
                       int64_t key_head_stride, const float *values, int64_t value_stride,
                       int64_t value_head_stride, float *out, int threads)
{
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        store_tokens(*layer, *tokens, keys, key_stride, key_head_stride, values, value_stride,
                     value_head_stride);
        attend_tokens(*layer, *tokens, queries, stride, head_stride, out,
                      layer->num_heads * layer->value_size);
    }
}

/* A decoder -------------------------------------------------------------------------------------- */

enum Kind { EMBED, NORM, MULTIPLY, ROTATE, STORE, ATTEND, ACTIVATE, PICK };
enum Function { SILU, GELU_TANH, RELU };

/* One operation on the rows of a step, from buffer `in` to buffer `out`. */
struct Op {
    int64_t kind, in, out;
    int64_t other;                                  /* STORE: the buffer of values; ACTIVATE: that whose
                                                       numbers multiply the result, or -1 */
    int64_t size;                                   /* NORM, ROTATE: of a head, or of the whole row;
                                                       EMBED: the rows of the table */
    int64_t layer;                                  /* STORE, ATTEND */
    int64_t function;                               /* ACTIVATE; NORM: 1 subtracts the mean; EMBED: 1 adds
                                                       the row of the position */
    const float *weight, *bias;                     /* EMBED: the table; NORM */
    double epsilon;
    Product product;                                /* MULTIPLY */
};

/* Intermediate results: (rows, width), of all rows or of a chunk. */
struct Buffer {
    int64_t width, is_local;
};

struct Program {
    const Op *ops;
    int64_t num_ops;
    const Buffer *buffers;                          /* the last one holds the logits */
    int64_t num_buffers;
};

struct Step {
    Tokens tokens;
    const int64_t *token_ids;                       /* (num,) */
    const Layer *layers;
    const float *cosines, *sines;                   /* (positions, rotary) */
    int64_t rotary;                                 /* numbers of a head that are rotated */
    int64_t num_picked;
    const int64_t *picked;                          /* (num_picked,) tokens whose logits are wanted */
    float *logits;                                  /* (num_picked, vocab) */
    int64_t *chosen;                                /* (num_picked,) of the largest logit the first; NaN is
                                                       larger than any number, as to torch */
    int32_t threads;
};

static void normalise(const Op &op, const float *in, float *out, int64_t width)
{
    for (int64_t first = 0; first < width; first += op.size, in += op.size, out += op.size) {
        floats sums = {}, squares = {};
        float mean = 0, sum = 0;
        int64_t place = 0;
        if (op.function) {
            for (; place + LANES <= op.size; place += LANES)
                sums += *(const floats *)(in + place);
            for (sum = total(sums); place < op.size; place++)
                sum += in[place];
            mean = sum / op.size;
        }
        for (place = 0; place + LANES <= op.size; place += LANES) {
            const floats some = *(const floats *)(in + place) - mean;
            squares += some * some;
        }
        for (sum = total(squares); place < op.size; place++)
            sum += (in[place] - mean) * (in[place] - mean);
        const float scale = 1 / sqrtf(sum / op.size + float(op.epsilon));
        for (place = 0; place < op.size; place++)
            out[place] = (in[place] - mean) * scale * op.weight[place] + (op.bias ? op.bias[place] : 0);
    }
}

static void rotate(const Op &op, const Step &step, int64_t position, float *row, int64_t width)
{
    const int64_t half = step.rotary / 2;
    const float *cosines = step.cosines + position * step.rotary;
    const float *sines = step.sines + position * step.rotary;
    for (float *head = row; head < row + width; head += op.size)
        for (int64_t place = 0; place < half; place++) {
            const float low = head[place], high = head[place + half];
            head[place] = low * cosines[place] - high * sines[place];
            head[place + half] = high * cosines[place + half] + low * sines[place + half];
        }
}

static inline floats load(const float *numbers, int64_t num)
{
    if (num >= LANES)
        return *(const floats *)numbers;
    floats some = {};
    memcpy(&some, numbers, 4 * num);
    return some;
}

static void activate(const Op &op, const float *in, const float *other, float *out, int64_t width)
{
    for (int64_t first = 0; first < width; first += LANES) {
        const int64_t left = width - first;
        floats x = load(in + first, left);
        if (op.function == RELU) {
            x = x < 0 ? floats{} : x;
        } else if (op.function == SILU) {
            const floats shrunk = exponential(x < 0 ? x : -x);
            x *= (x < 0 ? shrunk : floats{} + 1) / (1 + shrunk);
        } else {
            x *= 0.5f * (1 + tangent(0.7978845608f * (x + 0.044715f * x * x * x)));
        }
        if (other)
            x *= load(other + first, left);
        if (left >= LANES)
            *(floats *)(out + first) = x;
        else
            memcpy(out + first, &x, 4 * left);
    }
}

/* A step under way, as each of its threads sees it. */
struct Run {
    const Program &program;
    const Step &step;
    Tokens tokens;                                  /* of the step, and later those picked */
    float *const *starts;                           /* of the buffers */
    int64_t first, num;                             /* of the rows that are worked on */

    float *row(int64_t buffer, int64_t index) const
    {
        const Buffer &of = program.buffers[buffer];
        return starts[buffer] + (index + (of.is_local ? 0 : first)) * of.width;
    }

    int64_t width(int64_t buffer) const { return program.buffers[buffer].width; }

    Tokens fed() const
    {
        return {num, tokens.places + first, tokens.seq_lens + first, tokens.tables + first,
                tokens.scattered, tokens.table_size};
    }

    void of_rows(const Op &op) const
    {
#pragma omp for
        for (int64_t index = 0; index < num; index++) {
            float *in = row(op.in, index), *out = row(op.out, index);
            const int64_t position = tokens.seq_lens[first + index] - 1, size = width(op.out);
            if (op.kind == NORM)
                normalise(op, in, out, size);
            else if (op.kind == ROTATE)
                rotate(op, step, position, out, size);
            else if (op.kind == ACTIVATE)
                activate(op, in, op.other < 0 ? nullptr : row(op.other, index), out, size);
            else if (op.kind == PICK)
                memcpy(out, row(op.in, step.picked[index]), 4 * size);
            else if (op.function)
                for (int64_t place = 0; place < size; place++)
                    out[place] += op.weight[position * size + place];
            else
                memcpy(out, op.weight + step.token_ids[first + index] * size, 4 * size);
        }
    }

    void carry_out(const Op &op) const
    {
        if (op.kind == MULTIPLY) {
            multiply(op.product, num, row(op.in, 0), width(op.in), row(op.out, 0), width(op.out));
        } else if (op.kind == STORE) {
            const Layer &layer = step.layers[op.layer];
            store_tokens(layer, fed(), row(op.in, 0), width(op.in), layer.key_size, row(op.other, 0),
                         width(op.other), layer.value_size);
        } else if (op.kind == ATTEND) {
            const Layer &layer = step.layers[op.layer];
            attend_tokens(layer, fed(), row(op.in, 0), width(op.in), layer.key_size, row(op.out, 0),
                          width(op.out));
        } else {
            of_rows(op);
        }
    }

    /* Between attentions rows do not meet, so that a chunk of them goes through all operations while it
       is in the cache. `picked` are the tokens behind PICK. */
    void all(const Tokens &picked)
    {
        const auto meets = [](const Op &op) { return op.kind == ATTEND || op.kind == PICK; };
        const Op *op = program.ops, *const end = op + program.num_ops;
        while (op < end) {
            const Op *next = op;
            while (next < end && !meets(*next))
                next++;
            for (first = 0; first < tokens.num; first += CHUNK) {
                num = tokens.num - first < CHUNK ? tokens.num - first : CHUNK;
                for (const Op *each = op; each < next; each++)
                    carry_out(*each);
            }
            first = 0;
            if (next < end && next->kind == PICK)
                tokens = picked;
            num = tokens.num;
            if (next < end)
                carry_out(*next);
            op = next + 1;
        }
    }
};

static int64_t place_of_largest(const float *numbers, int64_t size)
{
    floats largest = floats{} - INFINITY;
    ints is_nan = {};
    int64_t place = 0;
    for (; place + LANES <= size; place += LANES) {
        const floats some = *(const floats *)(numbers + place);
        is_nan |= some != some;
        largest = some > largest ? some : largest;
    }
    bool has_nan = false;
    float most = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) {
        has_nan |= is_nan[lane] != 0;
        most = largest[lane] > most ? largest[lane] : most;
    }
    for (; place < size; place++) {
        has_nan |= numbers[place] != numbers[place];
        most = numbers[place] > most ? numbers[place] : most;
    }
    for (place = 0; has_nan ? numbers[place] == numbers[place] : numbers[place] != most;)
        place++;
    return place;
}

static bool is_within(const Op &op, const Step &step)
{
    for (int64_t token = 0; op.kind == EMBED && token < step.tokens.num; token++) {
        const int64_t row = op.function ? step.tokens.seq_lens[token] - 1 : step.token_ids[token];
        if (row < 0 || row >= op.size)
            return false;
    }
    return true;
}

/* Runs the decoder over the tokens of a step; returns 1, having done nothing, if one of them has no row in
   a table. */
extern "C" int decode(const Program *program, const Step *step)
{
    for (int64_t each = 0; each < program->num_ops; each++)
        if (!is_within(program->ops[each], *step))
            return 1;
    static thread_local std::vector<float> kept;
    static thread_local std::vector<int64_t> kept_tokens;
    std::vector<float *> starts;
    std::vector<size_t> offsets;
    const int64_t num_tokens = step->tokens.num, num_picked = step->num_picked;
    const int64_t most = num_tokens > num_picked ? num_tokens : num_picked;
    size_t size = 0;
    for (int64_t each = 0; each < program->num_buffers - 1; each++) {
        offsets.push_back(size);
        size += program->buffers[each].width * (program->buffers[each].is_local ? CHUNK : most) + PANEL;
    }
    float *const arena = scratch(kept, size);
    for (size_t each : offsets)
        starts.push_back(arena + each);
    starts.push_back(step->logits);
    kept_tokens.resize(3 * num_picked);
    int64_t *places = kept_tokens.data(), *seq_lens = places + num_picked, *tables = seq_lens + num_picked;
    for (int64_t each = 0; each < num_picked; each++) {
        places[each] = step->tokens.places[step->picked[each]];
        seq_lens[each] = step->tokens.seq_lens[step->picked[each]];
        tables[each] = step->tokens.tables[step->picked[each]];
    }
    const Tokens picked = {num_picked, places, seq_lens, tables, step->tokens.scattered,
                           step->tokens.table_size};
#pragma omp parallel num_threads(step->threads) if (step->threads > 1)
    {
        Run run = {*program, *step, step->tokens, starts.data(), 0, 0};
        run.all(picked);
        const int64_t vocab = program->buffers[program->num_buffers - 1].width;
#pragma omp for
        for (int64_t row = 0; row < num_picked; row++)
            step->chosen[row] = place_of_largest(step->logits + row * vocab, vocab);
    }
    return 0;
}
