/* Fuzz a client with changed answers:  fuzz [COUNT [SEED]]
 * The same seed gives the same answers. Run it under ASan and UBSan. At the end it prints a summary. */
#include "memory.h"

static Memory memory;
static uint64_t state;

static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

/* Change the bytes from `from` on; their number may change. */
static void mutate(uint8_t *data, size_t *size, size_t room) {
    static const uint8_t odd[] = {0, 1, 2, 3, 4, 7, 0x7f, 0x80, 0xff, 0xfe, 0x0a, 0x12, 0x1a, 0x0b, 0x0c};
    uint32_t changes = below(4); /* 0: a valid answer stays valid */
    while (changes-- > 0 && *size > 0) {
        size_t at = below((uint32_t)*size), n = 1 + below(8);
        switch (below(6)) {
        case 0: data[at] ^= (uint8_t)(1u << below(8)); break;
        case 1: data[at] = odd[below(sizeof odd)]; break;
        case 2: data[at] = (uint8_t)below(256); break;
        case 3: *size = at; break;
        case 4: /* delete some bytes */
            if (at + n > *size) n = *size - at;
            memmove(data + at, data + at + n, *size - at - n);
            *size -= n;
            break;
        case 5: /* duplicate some bytes */
            if (at + n > *size) n = *size - at;
            if (*size + n > room) break;
            memmove(data + at + n, data + at, *size - at);
            *size += n;
            break;
        }
    }
}

static Part right_welcome(void) {
    Part p = welcome(1048576, 4);
    if (environment_parameters) add_parameters(&p, 3);
    return p;
}

static void right_answer(Part *p, unsigned *kind, int box) {
    int64_t choices[3] = {0, 2, 1};
    float numbers[6] = {0, 0.5f, -0.5f, 1, -1, 0.25f};
    double returns[3] = {1, -2, 1e30}, values[4] = {-1, 1e30, 0, 2};
    uint8_t discrete[1] = {3}, pairs[2] = {3, 2}, of[2] = {0, 2};
    p->size = 0;
    *kind = 1 + below(9);
    switch (*kind) {
    case 1: *p = right_welcome(); break;
    case 3: add_bytes(p, 1, returns, sizeof returns); break;
    case 4: add_integer(p, 1, 11), add_bytes(p, 2, "no room \xe2\x82\xac", 11), add_integer(p, 3, 1), add_double(p, 4, 0); break;
    case 5: add_bytes(p, 1, "done", 4), add_integer(p, 2, 400000); break;
    case 6: case 7: add_integer(p, 1, 77); break;
    case 8: add_bytes(p, 1, "bye", 3); break;
    default: /* the expected answer, more often */
        *kind = 2;
        if (box) add_array(p, RLX_FLOAT32, pairs, 2, numbers, sizeof numbers);
        add_array(p, RLX_INT64, discrete, 1, choices, sizeof choices);
        if (environment_parameters && below(2)) add_bytes(p, 2, of, sizeof of), add_bytes(p, 3, values, sizeof values);
    }
}

static rlx_client *opened(int box) {
    static const uint32_t two[] = {2};
    static const double low[] = {-1}, high[] = {1};
    static const int habit = RLX_NEXT_STEP;
    static rlx_space parts[2];
    static rlx_transport transport;
    rlx_config c;
    char why[256];
    memset(&c, 0, sizeof c);
    transport = memory_transport(&memory);
    parts[0].kind = RLX_BOX, parts[0].dtype = RLX_FLOAT32, parts[0].axes = 1, parts[0].shape = two;
    parts[0].lows = parts[0].highs = 1, parts[0].low = low, parts[0].high = high;
    parts[1].kind = RLX_DISCRETE, parts[1].n = 3;
    c.addresses = "fuzz:1", c.transport = &transport, c.environments = 3, c.retry_seconds = -1;
    c.out_of_step = out_of_step, c.chosen_actions = chosen_actions, c.environment_parameters = environment_parameters;
    c.autoreset = &habit, c.autoresets = 1, c.observation = parts[0], c.action = parts[1];
    if (box) c.action.kind = RLX_TUPLE, c.action.parts = 2, c.action.spaces = parts;
    return rlx_open(&c, why);
}

static float seen[6], pairs[6];
static int64_t choices[3];

/* An outcome that is right for the client: some environments are idle, and some took an action of the client. Void
 * observations are NaN, and void actions are outside the space. */
static void right_outcome(const rlx_client *client, int step, uint8_t ended[3], uint8_t idle[3], uint8_t chosen[3]) {
    static const uint8_t nan[4] = {0, 0, 0xc0, 0x7f};
    int i;
    for (i = 0; i < 3; i++) {
        idle[i] = (uint8_t)(client->config.out_of_step && step && below(2));
        ended[i] = (uint8_t)(client->state == RLX__STEP && !client->between[i] && below(4) == 0);
        chosen[i] = (uint8_t)(client->config.chosen_actions && !client->between[i] && (!idle[i] || ended[i]) && below(2));
        seen[2 * i] = 0, pairs[2 * i] = 0.5f, choices[i] = chosen[i] ? 2 : 3;
        if (idle[i] && !ended[i]) memcpy(&seen[2 * i], nan, sizeof nan);
        if (!chosen[i]) memcpy(&pairs[2 * i], nan, sizeof nan);
    }
}

/* Whether the client's parameters are numbers with names, or it lost the connection. */
static int parameters_are_right(rlx_client *client) {
    const rlx_parameter *parameters;
    size_t count, i, j;
    if (rlx_parameters(client, &parameters, &count) != RLX_OK) return 1;
    for (i = 0; i < count; i++)
        for (j = 0; j < 3; j++)
            if (parameters[i].name[0] == 0 || !rlx__finite(parameters[i].values[j], 1e30)) return 0;
    return 1;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? strtol(argv[1], NULL, 10) : 1000000, done, ends[5] = {0};
    static const double reward[3] = {1, 1, 1};
    const void *const leaves[] = {seen}, *const both[] = {pairs, choices}, *const one[] = {choices};
    uint8_t ended[3], idle[3], chosen[3];
    rlx_outcome outcome = {reward, leaves, ended, NULL, NULL, NULL, 0};
    rlx_client *client = NULL;
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (done = 0; done < count; done++) {
        int box = (int)below(2), verdict, got = 0, step;
        unsigned kind;
        Part p;
        if (client == NULL || done % 64 == 0) {
            Part hi;
            out_of_step = (int)below(2), chosen_actions = (int)below(2), environment_parameters = (int)below(2);
            hi = right_welcome();
            rlx_close(client);
            client = opened(box);
            memory.from = memory.to = memory.size = 0;
            say(&memory, 1, &hi);
            if (rlx_connect(client) != RLX_OK) return puts("the right welcome was refused"), 3;
        }
        box = client->action.count == 2;
        right_answer(&p, &kind, box);
        if (below(2) == 0) { /* one frame, in memory of exactly its size */
            uint8_t frame[8192], *exact;
            rlx__in in;
            size_t size = 0;
            memory.from = memory.to = 0, say(&memory, kind, &p);
            memcpy(frame, memory.said + 4, size = memory.to - 4), mutate(frame, &size, sizeof frame);
            exact = (uint8_t *)malloc(size + 1), memcpy(exact, frame, size);
            exact = (uint8_t *)realloc(exact, size > 0 ? size : 1);
            in.at = exact, in.end = exact + size;
            verdict = rlx__look(client, in, below(4) ? kind : 1 + below(3), &got);
            free(exact);
        } else { /* a stream in pieces, sometimes with a changed length */
            memory.from = memory.to = 0, memory.chunk = below(3) == 0 ? 1 : 1 + below(64);
            if (client->state == RLX__CLOSED) {
                Part hi = right_welcome();
                say(&memory, 1, &hi);
            }
            size_t from = memory.to;
            say(&memory, kind, &p);
            size_t head = below(4) == 0 ? 0 : 4, size = memory.to - from - head;
            mutate(memory.said + from + head, &size, sizeof memory.said - from - head);
            memory.to = from + head + size;
            if (head == 4) memory.said[from + 2] = (uint8_t)(size >> 8), memory.said[from + 3] = (uint8_t)size;
            memory.broken = below(16) == 0; /* then the next message is the last one */
            step = client->state != RLX__STEP || below(4);
            right_outcome(client, step, ended, idle, chosen);
            if (environment_parameters && below(2) && !parameters_are_right(client))
                return puts("wrong parameters were accepted"), 3;
            if (client->state != RLX__STEP) verdict = below(8) ? rlx_init_idle(client, leaves, NULL, idle) : rlx_alive(client);
            else if (step) verdict = rlx_step_chosen(client, &outcome, idle, chosen, box ? both : one);
            else verdict = rlx_reset_chosen(client, &outcome, chosen, box ? both : one);
            memory.broken = 0;
        }
        ends[verdict + 2]++;
        client->finished = 0;
        if (verdict == RLX_INVALID) return printf("a right message was refused: %s\n", rlx_reason(client)), 3;
        if (verdict != RLX_OK) rlx__hang_up(client, 0);
    }
    rlx_close(client);
    printf("%ld fuzzed answers: %ld understood, %ld lost, %ld failed, %ld finished; nothing else happened\n", count, ends[2],
           ends[3], ends[1], ends[4]);
    return 0;
}
