/* An evaluator of policies that `relaax checkpoints export LOCATION FILE.rlxp` wrote, without a server, in one header: C99
 * and its library with libm, also for C++. relaax/policy/game_export.py describes the file.
 *
 * In one source file:  #define RLX_POLICY_IMPLEMENTATION  before  #include "rlx_policy.h".
 * Only rlx_policy_load reserves memory. A policy acts in one environment, from one thread at a time: load one for each. */
#ifndef RLX_POLICY_H
#define RLX_POLICY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rlx_policy rlx_policy;

/* Return the policy in the contents of a file, which may be freed afterwards; or NULL, and a text in `why` (256 bytes). */
rlx_policy *rlx_policy_load(const void *bytes, size_t size, char why[256]);
/* The next observation begins an episode. The first one does without a call. */
void rlx_policy_reset(rlx_policy *policy);
/* Compute the greedy action. `observation`: for each leaf of the space, a pointer to its elements, as in rlx.h.
 * Returns 0; or -1 if the observation is invalid, and a text in rlx_policy_reason. The policy is then as before. */
int rlx_policy_act(rlx_policy *policy, const void *const *observation);
/* A leaf of the last action, aligned: int64_t for choices, int8_t for bits, else the space's float or double. NULL beyond
 * the last leaf. */
const void *rlx_policy_action(const rlx_policy *policy, size_t leaf);
/* The last outputs of the network's head, such as "policy"; NULL if it has no such head. `count` may be NULL. */
const float *rlx_policy_output(const rlx_policy *policy, const char *head, size_t *count);
/* The size in bytes of a leaf; 0 beyond the last leaf. */
size_t rlx_policy_observation_size(const rlx_policy *policy, size_t leaf);
size_t rlx_policy_action_size(const rlx_policy *policy, size_t leaf);
const char *rlx_policy_reason(const rlx_policy *policy);
void rlx_policy_free(rlx_policy *policy);

#ifdef __cplusplus
}
#endif
#endif

#ifdef RLX_POLICY_IMPLEMENTATION
#undef RLX_POLICY_IMPLEMENTATION
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rlx_policy.h reads arrays as they are in the file: it requires a little-endian machine"
#endif

enum { RLXP__VERSION = 1, RLXP__LINES = 256, RLXP__NUMBERS = 1 << 26, RLXP__WORD = 64 };
#define RLXP__INTEGER ((int64_t)1 << 53)
/* Words of the header, by number. */
enum { RLXP__BOOL, RLXP__UINT8, RLXP__UINT16, RLXP__UINT32, RLXP__UINT64, RLXP__INT8, RLXP__INT16, RLXP__INT32, RLXP__INT64,
       RLXP__FLOAT32, RLXP__FLOAT64 };
enum { RLXP__FRAMES, RLXP__BYTES, RLXP__PLAIN_NUMBERS, RLXP__CHOICES, RLXP__MASK };
enum { RLXP__DENSE, RLXP__CONVOLUTION, RLXP__LSTM, RLXP__JOIN };
enum { RLXP__LARGEST, RLXP__POSITIVE, RLXP__SCALED };
enum { RLXP__LINEAR, RLXP__RELU, RLXP__TANH };
static const char *const rlxp__dtypes[] = {"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
                                           "float32", "float64", NULL};
static const char *const rlxp__leaves[] = {"frames", "bytes", "numbers", "choices", "mask", NULL};
static const char *const rlxp__rules[] = {"largest", "positive", "scaled", NULL};
static const char *const rlxp__activations[] = {"linear", "relu", "tanh", NULL};
static const char *const rlxp__inputs[] = {"plain", "normalized", NULL};
static const char *const rlxp__scales[] = {"plain", "squashed", NULL};
static const size_t rlxp__sizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8};

typedef struct rlxp__leaf { int kind, dtype; size_t count, width, choices; int64_t start; } rlxp__leaf; /* width: its inputs */
typedef struct rlxp__value {
    int kind, activation;
    size_t from, other, start, inputs, size, height, width, channels, kernel, stride;
    const float *weights, *bias;
    float *at, *state;                          /* state: h, then c, then the gates */
} rlxp__value;
typedef struct rlxp__output { char name[RLXP__WORD + 1]; size_t value; } rlxp__output;
typedef struct rlxp__action {
    int kind, dtype, squashed;
    size_t value, from, count, choices;
    int64_t start;
    const double *centre, *radius, *low, *high;
    unsigned char *at;
} rlxp__action;

struct rlx_policy {
    rlxp__leaf leaf[RLXP__LINES];
    rlxp__value value[RLXP__LINES];
    rlxp__output output[RLXP__LINES];
    rlxp__action action[RLXP__LINES];
    size_t leaves, values, outputs, actions, total; /* total: elements of all values */
    int normalized, began;
    size_t frames, pixels, history;             /* frames: the index of their leaf, or RLXP__LINES */
    size_t mask;                                /* likewise */
    const double *mean, *std, *limit;
    int64_t *choices;                           /* of all lines, one after another */
    double *doubles;                            /* arrays of the file */
    float *floats, *numbers;                    /* numbers: all values and states */
    unsigned char *stack, *valid, *memory;      /* memory: of actions */
    char reason[256];
};

/* --- Header ------------------------------------------------------------------------------------------------------- */
typedef struct rlxp__in {
    const unsigned char *at, *end;
    size_t line, chosen, doubles, floats;       /* doubles and floats: the number of elements that lines have used */
    size_t double_count, float_count;
    char why[256];                              /* empty: no error */
} rlxp__in;

static void rlxp__refuse(rlxp__in *in, const char *format, ...) {
    va_list words;
    char text[200];
    if (in->why[0] != 0) return;
    va_start(words, format);
    vsnprintf(text, sizeof text, format, words);
    va_end(words);
    snprintf(in->why, sizeof in->why, "the policy is damaged: line %lu of its header: %s", (unsigned long)in->line, text);
}

static uint32_t rlxp__word32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t rlxp__crc(const unsigned char *p, size_t size) {
    static const uint32_t table[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158,
                                       0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4,
                                       0xa00ae278, 0xbdbdf21c};
    uint32_t crc = 0xffffffffu;
    while (size-- > 0) {
        crc ^= *p++;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

/* Read the next word of the line, at most RLXP__WORD characters; refuse the end of the line. */
static void rlxp__word(rlxp__in *in, char word[RLXP__WORD + 1]) {
    size_t n = 0;
    while (in->at < in->end && *in->at > ' ' && *in->at < 127 && n < RLXP__WORD) word[n++] = (char)*in->at++;
    word[n] = 0;
    if (n == 0) rlxp__refuse(in, "a word is missing");
    if (in->at < in->end && *in->at == ' ') in->at++;
    else if (in->at >= in->end || *in->at != '\n') rlxp__refuse(in, "it has an invalid character, or no end");
}

static int rlxp__one_of(rlxp__in *in, const char *const *words) {
    char word[RLXP__WORD + 1];
    int i = 0;
    rlxp__word(in, word);
    while (words[i] != NULL && strcmp(words[i], word) != 0) i++;
    if (words[i] != NULL) return i;
    rlxp__refuse(in, "unknown word \"%.40s\"", word);
    return 0;
}

/* Read an integer. An invalid one is refused, and `least` is returned. */
static int64_t rlxp__integer(rlxp__in *in, int64_t least, int64_t most) {
    char word[RLXP__WORD + 1];
    const char *digit = word;
    int64_t value = 0;
    rlxp__word(in, word);
    digit += *word == '-';
    if (*digit == 0 || strlen(digit) > 16) value = RLXP__INTEGER * 2;
    for (; *digit != 0 && value <= RLXP__INTEGER; digit++) {
        if (*digit < '0' || *digit > '9') value = RLXP__INTEGER * 2;
        else value = 10 * value + (*digit - '0');
    }
    if (value > RLXP__INTEGER || (*word == '-' ? -value : value) < least || (*word == '-' ? -value : value) > most) {
        rlxp__refuse(in, "%.20s is not an integer from %lld to %lld", word, (long long)least, (long long)most);
        return least;
    }
    return *word == '-' ? -value : value;
}

static size_t rlxp__count(rlxp__in *in) { return (size_t)rlxp__integer(in, 1, RLXP__NUMBERS); }

static int rlxp__line_has_more(const rlxp__in *in) {
    return in->why[0] == 0 && in->at < in->end && *in->at != '\n' && in->at[-1] == ' ';
}

static void rlxp__end_line(rlxp__in *in) {
    if (in->at < in->end && *in->at == '\n' && in->at[-1] != ' ') in->at++, in->line++;
    else rlxp__refuse(in, "it has too many words, or no end");
}

/* Whether the line begins with a word; if so, skip the word and the space behind it. */
static int rlxp__begins(rlxp__in *in, const char *word) {
    size_t n = strlen(word);
    while (in->why[0] == 0 && in->at < in->end && *in->at == '#') {
        while (in->at < in->end && *in->at != '\n') in->at++;
        if (in->at < in->end) in->at++, in->line++;
        else rlxp__refuse(in, "it has no end");
    }
    if (in->why[0] != 0 || (size_t)(in->end - in->at) <= n || memcmp(in->at, word, n) != 0 || in->at[n] != ' ') return 0;
    in->at += n + 1;
    return 1;
}

static size_t rlxp__value_of(rlxp__in *in, const rlx_policy *p) { return (size_t)rlxp__integer(in, 0, (int64_t)p->values - 1); }

/* Whether another line of a kind fits. */
static int rlxp__room(rlxp__in *in, size_t count) {
    if (count < RLXP__LINES) return 1;
    rlxp__refuse(in, "more than %d lines of a kind", RLXP__LINES);
    return 0;
}

/* Use the next `count` elements of the arrays; in case of an error, those at the beginning. */
static const float *rlxp__floats(rlxp__in *in, const rlx_policy *p, size_t a, size_t b) {
    size_t at = in->floats;
    if (b != 0 && a > (in->float_count - at) / b) return rlxp__refuse(in, "the arrays are too small for it"), p->floats;
    in->floats += a * b;
    return p->floats + at;
}

static const double *rlxp__doubles(rlxp__in *in, const rlx_policy *p, size_t count) {
    size_t at = in->doubles;
    if (count > in->double_count - at) return rlxp__refuse(in, "the arrays are too small for it"), p->doubles;
    in->doubles += count;
    return p->doubles + at;
}

/* Read the sizes of choices to the end of the line. Returns how many, and sets `sum`. */
static size_t rlxp__choices(rlxp__in *in, rlx_policy *p, size_t *sum) {
    size_t count = 0;
    for (*sum = 0; count == 0 || rlxp__line_has_more(in); count++) {
        size_t n = rlxp__count(in);
        if (in->why[0] != 0) return 0;
        if (n > RLXP__NUMBERS - *sum) return rlxp__refuse(in, "it has too many choices"), 0;
        *sum += n;
        p->choices[in->chosen++] = (int64_t)n;
    }
    return count;
}

static void rlxp__read_leaf(rlxp__in *in, rlx_policy *p) {
    rlxp__leaf *leaf = &p->leaf[p->leaves];
    leaf->kind = rlxp__one_of(in, rlxp__leaves);
    leaf->dtype = leaf->kind == RLXP__BYTES ? RLXP__UINT8 : RLXP__INT64;
    if (leaf->kind == RLXP__CHOICES) {
        leaf->start = rlxp__integer(in, -RLXP__INTEGER, RLXP__INTEGER);
        leaf->choices = in->chosen;
        leaf->count = rlxp__choices(in, p, &leaf->width);
    } else {
        if (leaf->kind != RLXP__BYTES) leaf->dtype = rlxp__one_of(in, rlxp__dtypes);
        leaf->count = leaf->width = rlxp__count(in);
    }
    if (leaf->kind == RLXP__FRAMES) {
        if (p->frames < RLXP__LINES) rlxp__refuse(in, "it has other frames already");
        if (leaf->dtype > RLXP__UINT8) rlxp__refuse(in, "frames must be of bool or uint8");
        p->frames = p->leaves, p->pixels = leaf->count, p->history = rlxp__count(in);
        if (leaf->count > RLXP__NUMBERS / p->history) rlxp__refuse(in, "it has too many pixels");
        else leaf->width = leaf->count * p->history;
    } else if (leaf->kind == RLXP__MASK) {
        if (p->mask < RLXP__LINES) rlxp__refuse(in, "it has another mask already");
        p->mask = p->leaves, leaf->width = 0;
    }
    p->leaves++;
    rlxp__end_line(in);
}

static void rlxp__read_inputs(rlxp__in *in, rlx_policy *p) {
    size_t i, sum = 0;
    rlxp__value *v = &p->value[0];
    p->normalized = rlxp__one_of(in, rlxp__inputs);
    v->size = rlxp__count(in);
    for (i = 0; i < p->leaves && sum <= RLXP__NUMBERS; i++) sum += p->leaf[i].width;
    if (sum != v->size) rlxp__refuse(in, "the leaves of an observation do not make %lu inputs", (unsigned long)v->size);
    if (p->normalized) p->mean = rlxp__doubles(in, p, v->size), p->std = rlxp__doubles(in, p, v->size);
    p->limit = rlxp__doubles(in, p, 1);
    p->values = 1, p->total = v->size;
    rlxp__end_line(in);
}

/* Read which numbers of an earlier value a layer uses: VALUE START, and `inputs` of them. */
static void rlxp__check_part(rlxp__in *in, const rlx_policy *p, const rlxp__value *v) {
    size_t size = p->value[v->from].size;
    if (v->start > size || v->inputs > size - v->start)
        rlxp__refuse(in, "value %lu has only %lu numbers", (unsigned long)v->from, (unsigned long)size);
}

/* a x b, at most RLXP__NUMBERS. */
static size_t rlxp__product(rlxp__in *in, size_t a, size_t b) {
    if (b == 0 || a <= RLXP__NUMBERS / b) return a * b;
    return rlxp__refuse(in, "it is too large"), 1;
}

static void rlxp__read_value(rlxp__in *in, rlx_policy *p, int kind) {
    rlxp__value *v = &p->value[p->values];
    v->kind = kind;
    if (kind == RLXP__DENSE || kind == RLXP__CONVOLUTION) v->activation = rlxp__one_of(in, rlxp__activations);
    v->from = rlxp__value_of(in, p);
    if (kind == RLXP__DENSE || kind == RLXP__CONVOLUTION) v->start = (size_t)rlxp__integer(in, 0, RLXP__NUMBERS);
    if (kind == RLXP__DENSE) {
        v->inputs = rlxp__count(in), v->size = rlxp__count(in);
        v->weights = rlxp__floats(in, p, v->inputs, v->size), v->bias = rlxp__floats(in, p, v->size, 1);
        rlxp__check_part(in, p, v);
    } else if (kind == RLXP__CONVOLUTION) {
        size_t filters, high, wide, patch;
        v->height = rlxp__count(in), v->width = rlxp__count(in), v->channels = rlxp__count(in);
        filters = rlxp__count(in), v->kernel = rlxp__count(in), v->stride = rlxp__count(in);
        v->inputs = rlxp__product(in, rlxp__product(in, v->height, v->width), v->channels);
        if (v->kernel > v->height || v->kernel > v->width) rlxp__refuse(in, "the image is smaller than the kernel");
        rlxp__check_part(in, p, v);
        if (in->why[0] != 0) return;
        high = (v->height - v->kernel) / v->stride + 1, wide = (v->width - v->kernel) / v->stride + 1;
        v->size = rlxp__product(in, rlxp__product(in, high, wide), filters);
        patch = rlxp__product(in, rlxp__product(in, v->kernel, v->kernel), v->channels);
        v->weights = rlxp__floats(in, p, patch, filters), v->bias = rlxp__floats(in, p, filters, 1);
    } else if (kind == RLXP__LSTM) {
        v->inputs = p->value[v->from].size, v->size = rlxp__count(in);
        v->weights = rlxp__floats(in, p, v->inputs + v->size, 4 * v->size), v->bias = rlxp__floats(in, p, 4 * v->size, 1);
    } else {
        v->other = rlxp__value_of(in, p);
        v->size = p->value[v->from].size + p->value[v->other].size;
    }
    p->total += v->size; /* at most 2^28 */
    if (p->total > RLXP__NUMBERS) rlxp__refuse(in, "the values are too large");
    p->values++;
    rlxp__end_line(in);
}

static void rlxp__read_output(rlxp__in *in, rlx_policy *p) {
    rlxp__output *output = &p->output[p->outputs++];
    rlxp__word(in, output->name);
    output->value = rlxp__value_of(in, p);
    rlxp__end_line(in);
}

static void rlxp__read_action(rlxp__in *in, rlx_policy *p) {
    rlxp__action *a = &p->action[p->actions++];
    size_t size, sum;
    a->kind = rlxp__one_of(in, rlxp__rules);
    if (a->kind == RLXP__SCALED) {
        a->squashed = rlxp__one_of(in, rlxp__scales);
        a->dtype = rlxp__one_of(in, rlxp__dtypes);
        if (a->dtype < RLXP__FLOAT32) rlxp__refuse(in, "scaled actions must be of float32 or float64");
    }
    a->value = rlxp__value_of(in, p), size = p->value[a->value].size;
    if (a->kind == RLXP__LARGEST) {
        a->dtype = RLXP__INT64, a->start = rlxp__integer(in, -RLXP__INTEGER, RLXP__INTEGER), a->choices = in->chosen;
        a->count = rlxp__choices(in, p, &sum);
        if (sum != size) rlxp__refuse(in, "%lu choices of a value of %lu numbers", (unsigned long)sum, (unsigned long)size);
    } else if (a->kind == RLXP__POSITIVE) {
        a->dtype = RLXP__INT8, a->count = size;
    } else {
        a->from = (size_t)rlxp__integer(in, 0, RLXP__NUMBERS), a->count = rlxp__count(in);
        if (a->from > size || a->count > size - a->from) rlxp__refuse(in, "its value has only %lu numbers", (unsigned long)size);
        a->centre = rlxp__doubles(in, p, a->count), a->radius = rlxp__doubles(in, p, a->count);
        a->low = rlxp__doubles(in, p, a->count), a->high = rlxp__doubles(in, p, a->count);
    }
    rlxp__end_line(in);
}

/* Whether a float32 or float64 is infinite or NaN, by its exponent: also correct under -ffast-math. */
static int rlxp__infinite(int dtype, const unsigned char *p) {
    if (dtype == RLXP__FLOAT32) return (p[3] & 0x7f) == 0x7f && (p[2] & 0x80);
    return dtype == RLXP__FLOAT64 && (p[7] & 0x7f) == 0x7f && (p[6] & 0xf0) == 0xf0;
}

static void rlxp__check_arrays(rlxp__in *in, const rlx_policy *p) {
    size_t i;
    if (in->why[0] != 0) return;
    for (i = 0; i < in->double_count; i++)
        if (rlxp__infinite(RLXP__FLOAT64, (const unsigned char *)&p->doubles[i])) rlxp__refuse(in, "an array is not finite");
    for (i = 0; i < in->float_count; i++)
        if (rlxp__infinite(RLXP__FLOAT32, (const unsigned char *)&p->floats[i])) rlxp__refuse(in, "an array is not finite");
    for (i = 0; p->normalized && i < p->value[0].size; i++)
        if (!(p->std[i] > 0)) rlxp__refuse(in, "a standard deviation is not positive");
    if (!(*p->limit > 0)) rlxp__refuse(in, "the limit of inputs is not positive");
}

static void rlxp__read_header(rlxp__in *in, rlx_policy *p) {
    static const char *const layers[] = {"dense", "convolution", "lstm", "join"};
    size_t i, masked = 0, choices = 0;
    int kind;
    while (rlxp__begins(in, "observation")) if (rlxp__room(in, p->leaves)) rlxp__read_leaf(in, p);
    if (!rlxp__begins(in, "inputs")) rlxp__refuse(in, "it is not \"inputs\"");
    if (in->why[0] != 0) return;
    rlxp__read_inputs(in, p);
    for (kind = 0; kind < 4; kind++)
        if (rlxp__begins(in, layers[kind]) && rlxp__room(in, p->values)) rlxp__read_value(in, p, kind), kind = -1;
    while (rlxp__begins(in, "output")) if (rlxp__room(in, p->outputs)) rlxp__read_output(in, p);
    while (rlxp__begins(in, "action")) if (rlxp__room(in, p->actions)) rlxp__read_action(in, p);
    if (in->at < in->end) rlxp__refuse(in, "unknown or misplaced line");
    if (p->actions == 0) rlxp__refuse(in, "it is not \"action\"");
    if (in->doubles != in->double_count || in->floats != in->float_count) rlxp__refuse(in, "the arrays are larger than needed");
    for (i = 0; i < p->actions && in->why[0] == 0; i++)
        if (p->action[i].kind == RLXP__LARGEST) choices += p->value[p->action[i].value].size;
    if (p->mask < RLXP__LINES) masked = p->leaf[p->mask].count;
    if (p->mask < RLXP__LINES && masked != choices) rlxp__refuse(in, "the mask does not have the size of the choices");
    rlxp__check_arrays(in, p);
}

/* Reserve memory for values, states, frames and actions. Returns whether there is enough. */
static int rlxp__reserve(rlxp__in *in, rlx_policy *p) {
    size_t i, numbers = 0, bytes = 0;
    for (i = 0; i < p->values; i++) numbers += (p->value[i].kind == RLXP__LSTM ? 7 : 1) * p->value[i].size;
    for (i = 0; i < p->actions; i++) { /* each count is at most the size of a value */
        bytes += 8 * p->action[i].count;
        if (bytes > 8 * (size_t)RLXP__NUMBERS) return rlxp__refuse(in, "the actions are too large"), 0;
    }
    p->numbers = (float *)calloc(numbers, sizeof(float));
    p->memory = (unsigned char *)calloc(bytes, 1);
    p->stack = (unsigned char *)calloc(p->pixels * p->history + 1, 1);
    p->valid = (unsigned char *)calloc(p->mask < RLXP__LINES ? p->leaf[p->mask].count : 1, 1);
    if (p->numbers == NULL || p->memory == NULL || p->stack == NULL || p->valid == NULL) return 0;
    for (i = numbers = 0; i < p->values; i++) {
        rlxp__value *v = &p->value[i];
        v->at = p->numbers + numbers, numbers += v->size;
        if (v->kind == RLXP__LSTM) v->state = p->numbers + numbers, numbers += 6 * v->size;
    }
    for (i = bytes = 0; i < p->actions; i++) p->action[i].at = p->memory + bytes, bytes += 8 * p->action[i].count;
    return 1;
}

static rlx_policy *rlxp__fail(rlx_policy *p, char why[256], const char *text) {
    snprintf(why, 256, "%s", text);
    rlx_policy_free(p);
    return NULL;
}

rlx_policy *rlx_policy_load(const void *bytes, size_t size, char why[256]) {
    const unsigned char *file = (const unsigned char *)bytes;
    size_t header, left;
    rlx_policy *p;
    rlxp__in in;
    why[0] = 0;
    if (bytes == NULL || size < 16 || memcmp(file, "RLXP", 4) != 0)
        return rlxp__fail(NULL, why, "this is not a policy: `relaax checkpoints export LOCATION FILE.rlxp` writes one");
    if (rlxp__word32(file + 4) != RLXP__VERSION) {
        snprintf(why, 256, "the policy has version %lu of the format, and this header reads version %d",
                 (unsigned long)rlxp__word32(file + 4), RLXP__VERSION);
        return NULL;
    }
    header = rlxp__word32(file + 8);
    if (header > size - 16 || rlxp__crc(file + 16, size - 16) != rlxp__word32(file + 12))
        return rlxp__fail(NULL, why, "the policy is damaged: its checksum differs");
    memset(&in, 0, sizeof in);
    in.at = file + 16, in.end = in.at + header, in.line = 1, left = size - 16 - header;
    if (rlxp__begins(&in, "arrays")) {
        in.double_count = (size_t)rlxp__integer(&in, 1, (int64_t)(left / 8));
        in.float_count = (size_t)rlxp__integer(&in, 0, (int64_t)(left / 4));
        rlxp__end_line(&in);
    } else {
        rlxp__refuse(&in, "it is not \"arrays\"");
    }
    if (8 * in.double_count > left || 4 * in.float_count != left - 8 * in.double_count)
        rlxp__refuse(&in, "the arrays do not have the size of the file");
    if (in.why[0] != 0) return rlxp__fail(NULL, why, in.why);
    p = (rlx_policy *)calloc(1, sizeof *p);
    if (p == NULL) return rlxp__fail(p, why, "not enough memory");
    p->frames = p->mask = RLXP__LINES;
    p->choices = (int64_t *)calloc(header / 2 + 1, sizeof(int64_t)); /* each has a character and a space */
    p->doubles = (double *)malloc(8 * in.double_count);
    p->floats = (float *)malloc(4 * in.float_count + 1);
    if (p->choices == NULL || p->doubles == NULL || p->floats == NULL) return rlxp__fail(p, why, "not enough memory");
    memcpy(p->doubles, file + 16 + header, 8 * in.double_count);
    memcpy(p->floats, file + 16 + header + 8 * in.double_count, 4 * in.float_count);
    rlxp__read_header(&in, p);
    if (in.why[0] == 0 && !rlxp__reserve(&in, p) && in.why[0] == 0) return rlxp__fail(p, why, "not enough memory");
    if (in.why[0] != 0) return rlxp__fail(p, why, in.why);
    return p;
}

void rlx_policy_free(rlx_policy *p) {
    if (p == NULL) return;
    free(p->choices), free(p->doubles), free(p->floats), free(p->numbers), free(p->stack), free(p->valid), free(p->memory);
    free(p);
}

/* --- Observations ------------------------------------------------------------------------------------------------- */
static double rlxp__number(int dtype, const unsigned char *p, size_t i) {
    uint16_t u2;
    uint32_t u4;
    uint64_t u8;
    int16_t i2;
    int32_t i4;
    int64_t i8;
    float f4;
    double f8;
    p += rlxp__sizes[dtype] * i;
    switch (dtype) {
    case RLXP__BOOL: return *p != 0;
    case RLXP__UINT8: return *p;
    case RLXP__UINT16: return memcpy(&u2, p, 2), u2;
    case RLXP__UINT32: return memcpy(&u4, p, 4), u4;
    case RLXP__UINT64: return memcpy(&u8, p, 8), (double)u8;
    case RLXP__INT8: return *p < 128 ? *p : *p - 256;
    case RLXP__INT16: return memcpy(&i2, p, 2), i2;
    case RLXP__INT32: return memcpy(&i4, p, 4), i4;
    case RLXP__INT64: return memcpy(&i8, p, 8), (double)i8;
    case RLXP__FLOAT32: return memcpy(&f4, p, 4), f4;
    }
    return memcpy(&f8, p, 8), f8;
}

static float rlxp__float(double value) {
    if (value > FLT_MAX) return FLT_MAX;
    return value < -FLT_MAX ? -FLT_MAX : (float)value;
}

/* Return 0; or -1, and set the reason. */
static int rlxp__check_leaf(rlx_policy *p, size_t index, const unsigned char *from) {
    const rlxp__leaf *leaf = &p->leaf[index];
    size_t i;
    for (i = 0; leaf->dtype >= RLXP__FLOAT32 && i < leaf->count; i++)
        if (rlxp__infinite(leaf->dtype, from + i * rlxp__sizes[leaf->dtype])) {
            snprintf(p->reason, sizeof p->reason, "element %lu of observation leaf %lu is infinite or NaN", (unsigned long)i,
                     (unsigned long)index);
            return -1;
        }
    for (i = 0; leaf->kind == RLXP__CHOICES && i < leaf->count; i++) {
        int64_t last = leaf->start + p->choices[leaf->choices + i] - 1, choice;
        memcpy(&choice, from + 8 * i, 8);
        if (choice < leaf->start || choice > last) {
            snprintf(p->reason, sizeof p->reason, "element %lu of observation leaf %lu must be between %lld and %lld, not %lld",
                     (unsigned long)i, (unsigned long)index, (long long)leaf->start, (long long)last, (long long)choice);
            return -1;
        }
    }
    return 0;
}

/* Read the mask into `valid`. Return 0; or -1 if a choice has no valid action. */
static int rlxp__read_mask(rlx_policy *p, const unsigned char *from) {
    const rlxp__leaf *leaf = &p->leaf[p->mask];
    size_t i, j, k, at = 0;
    for (i = 0; i < leaf->count; i++) p->valid[i] = rlxp__number(leaf->dtype, from, i) != 0;
    for (i = 0; i < p->actions; i++)
        for (j = 0; p->action[i].kind == RLXP__LARGEST && j < p->action[i].count; j++) {
            int any = 0;
            for (k = 0; k < (size_t)p->choices[p->action[i].choices + j]; k++) any |= p->valid[at++];
            if (any) continue;
            snprintf(p->reason, sizeof p->reason, "the action mask allows no action: each choice needs a valid action");
            return -1;
        }
    return 0;
}

static void rlxp__push_frame(rlx_policy *p, const unsigned char *frame) {
    size_t i, history = p->history;
    for (i = 0; i < p->pixels; i++) {
        unsigned char pixel = p->leaf[p->frames].dtype == RLXP__BOOL ? (frame[i] ? 255 : 0) : frame[i];
        if (!p->began) memset(p->stack + i * history, pixel, history);
        memmove(p->stack + i * history, p->stack + i * history + 1, history - 1);
        p->stack[(i + 1) * history - 1] = pixel;
    }
}

static void rlxp__encode(rlx_policy *p, const void *const *observation) {
    float *x = p->value[0].at;
    size_t i, j, at = p->pixels * p->history;
    for (i = 0; i < at; i++) x[i] = (float)p->stack[i] / 255.0f;
    for (i = 0; i < p->leaves; i++) {
        const rlxp__leaf *leaf = &p->leaf[i];
        const unsigned char *from = (const unsigned char *)observation[i];
        if (leaf->kind == RLXP__BYTES)
            for (j = 0; j < leaf->count; j++) x[at++] = (float)from[j] / 255.0f;
        else if (leaf->kind == RLXP__PLAIN_NUMBERS)
            for (j = 0; j < leaf->count; j++) x[at++] = rlxp__float(rlxp__number(leaf->dtype, from, j));
        else if (leaf->kind == RLXP__CHOICES) {
            memset(x + at, 0, leaf->width * sizeof *x);
            for (j = 0; j < leaf->count; j++) {
                int64_t choice;
                memcpy(&choice, from + 8 * j, 8);
                x[at + (size_t)(choice - leaf->start)] = 1;
                at += (size_t)p->choices[leaf->choices + j];
            }
        }
    }
    for (i = 0; i < p->value[0].size; i++) {
        double number = p->normalized ? (x[i] - p->mean[i]) / p->std[i] : x[i];
        number = number > *p->limit ? *p->limit : number;
        x[i] = (float)(number < -*p->limit ? -*p->limit : number);
    }
}

/* --- Network ------------------------------------------------------------------------------------------------------ */
/* y[size] += x[inputs] @ weights[inputs, size] */
static void rlxp__add_product(float *y, size_t size, const float *x, size_t inputs, const float *weights) {
    size_t i, j;
    for (i = 0; i < inputs; i++, weights += size) {
        const float factor = x[i];
        for (j = 0; j < size; j++) y[j] += factor * weights[j];
    }
}

static void rlxp__activate(int activation, float *y, size_t size) {
    size_t i;
    if (activation == RLXP__RELU) for (i = 0; i < size; i++) y[i] = y[i] > 0 ? y[i] : 0;
    if (activation == RLXP__TANH) for (i = 0; i < size; i++) y[i] = tanhf(y[i]);
}

static void rlxp__convolve(const rlxp__value *v, const float *x) {
    size_t high = (v->height - v->kernel) / v->stride + 1, wide = (v->width - v->kernel) / v->stride + 1;
    size_t filters = v->size / (high * wide), run = v->kernel * v->channels, row, column, r;
    float *y = v->at;
    for (row = 0; row < high; row++)
        for (column = 0; column < wide; column++, y += filters) {
            const float *from = x + (row * v->stride * v->width + column * v->stride) * v->channels;
            memcpy(y, v->bias, filters * sizeof *y);
            for (r = 0; r < v->kernel; r++)
                rlxp__add_product(y, filters, from + r * v->width * v->channels, run, v->weights + r * run * filters);
        }
}

static float rlxp__sigmoid(float z) { return 0.5f + 0.5f * tanhf(0.5f * z); }

static void rlxp__remember(const rlxp__value *v, const float *x) {
    size_t n = v->size, i;
    float *h = v->state, *c = h + n, *gates = c + n;
    memcpy(gates, v->bias, 4 * n * sizeof *gates);
    rlxp__add_product(gates, 4 * n, x, v->inputs, v->weights);
    rlxp__add_product(gates, 4 * n, h, n, v->weights + v->inputs * 4 * n);
    for (i = 0; i < n; i++) {
        c[i] = rlxp__sigmoid(gates[n + i]) * c[i] + rlxp__sigmoid(gates[i]) * tanhf(gates[2 * n + i]);
        v->at[i] = h[i] = tanhf(c[i]) * rlxp__sigmoid(gates[3 * n + i]);
    }
}

static void rlxp__compute(rlx_policy *p) {
    size_t i;
    for (i = 1; i < p->values; i++) {
        const rlxp__value *v = &p->value[i];
        const float *x = p->value[v->from].at + v->start;
        if (v->kind == RLXP__DENSE) {
            memcpy(v->at, v->bias, v->size * sizeof *v->at);
            rlxp__add_product(v->at, v->size, x, v->inputs, v->weights);
        } else if (v->kind == RLXP__CONVOLUTION) {
            rlxp__convolve(v, x);
        } else if (v->kind == RLXP__LSTM) {
            rlxp__remember(v, x);
        } else {
            size_t first = p->value[v->from].size;
            memcpy(v->at, x, first * sizeof *x);
            memcpy(v->at + first, p->value[v->other].at, (v->size - first) * sizeof *x);
        }
        rlxp__activate(v->activation, v->at, v->size);
    }
}

/* --- Actions ------------------------------------------------------------------------------------------------------ */
/* `valid`: the mask from this action's first choice on, or NULL. Returns the number of its elements. */
static size_t rlxp__choose(const rlx_policy *p, const rlxp__action *a, const unsigned char *valid) {
    float *y = p->value[a->value].at;
    size_t i, j, at = 0;
    for (i = 0; i < a->count; i++) {
        size_t n = (size_t)p->choices[a->choices + i], best = 0;
        int64_t action;
        for (j = 0; valid != NULL && j < n; j++) y[at + j] = !valid[at + j] ? -1e30f : y[at + j] > -1e29f ? y[at + j] : -1e29f;
        for (j = 1; j < n; j++) if (y[at + j] > y[at + best]) best = j;
        action = a->start + (int64_t)best, at += n;
        memcpy(a->at + 8 * i, &action, 8);
    }
    return at;
}

static void rlxp__scale(const rlx_policy *p, const rlxp__action *a) {
    const float *y = p->value[a->value].at + a->from;
    size_t i;
    for (i = 0; i < a->count; i++) {
        double number = a->centre[i] + a->radius[i] * (a->squashed ? tanhf(y[i]) : y[i]);
        float single;
        number = number < a->low[i] ? a->low[i] : number;
        number = number > a->high[i] ? a->high[i] : number;
        single = rlxp__float(number);
        if (a->dtype == RLXP__FLOAT32) memcpy(a->at + 4 * i, &single, 4);
        else memcpy(a->at + 8 * i, &number, 8);
    }
}

int rlx_policy_act(rlx_policy *p, const void *const *observation) {
    size_t i, j;
    const unsigned char *valid = p->mask < RLXP__LINES ? p->valid : NULL;
    for (i = 0; i < p->leaves; i++)
        if (rlxp__check_leaf(p, i, (const unsigned char *)observation[i]) != 0) return -1;
    if (valid != NULL && rlxp__read_mask(p, (const unsigned char *)observation[p->mask]) != 0) return -1;
    if (p->frames < RLXP__LINES) rlxp__push_frame(p, (const unsigned char *)observation[p->frames]);
    for (i = 1; !p->began && i < p->values; i++)
        if (p->value[i].kind == RLXP__LSTM) memset(p->value[i].state, 0, 2 * p->value[i].size * sizeof(float));
    p->began = 1;
    rlxp__encode(p, observation);
    rlxp__compute(p);
    for (i = 0; i < p->actions; i++) {
        const rlxp__action *a = &p->action[i];
        const float *y = p->value[a->value].at;
        if (a->kind == RLXP__LARGEST) {
            size_t used = rlxp__choose(p, a, valid);
            if (valid != NULL) valid += used;
        } else if (a->kind == RLXP__SCALED) {
            rlxp__scale(p, a);
        } else {
            for (j = 0; j < a->count; j++) a->at[j] = y[j] > 0;
        }
    }
    return 0;
}

void rlx_policy_reset(rlx_policy *p) { p->began = 0; }

const void *rlx_policy_action(const rlx_policy *p, size_t leaf) { return leaf < p->actions ? p->action[leaf].at : NULL; }

const float *rlx_policy_output(const rlx_policy *p, const char *head, size_t *count) {
    size_t i = 0;
    while (i < p->outputs && strcmp(p->output[i].name, head) != 0) i++;
    if (count != NULL) *count = i < p->outputs ? p->value[p->output[i].value].size : 0;
    return i < p->outputs ? p->value[p->output[i].value].at : NULL;
}

size_t rlx_policy_observation_size(const rlx_policy *p, size_t leaf) {
    return leaf < p->leaves ? p->leaf[leaf].count * rlxp__sizes[p->leaf[leaf].dtype] : 0;
}

size_t rlx_policy_action_size(const rlx_policy *p, size_t leaf) {
    return leaf < p->actions ? p->action[leaf].count * rlxp__sizes[p->action[leaf].dtype] : 0;
}

const char *rlx_policy_reason(const rlx_policy *p) { return p->reason; }
#endif
