/* What the golden conversations do not show: the example of section 13 byte for byte, what is refused before it is
 * sent, connecting again, and that nothing is allocated after the handshake. */
#include "memory.h"

#ifdef COUNT_ALLOCATIONS /* every one of this process: glibc's own functions lie under these */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static long allocations;
void *malloc(size_t size) { return allocations++, __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return allocations++, __libc_calloc(n, size); }
void *realloc(void *old, size_t size) { return allocations++, __libc_realloc(old, size); }
#endif

static int failures;
#define CHECK(what) ((what) ? (void)0 : (void)(failures++, printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what)))

static Memory memory;
static const uint32_t two[] = {2};
static const int habits[] = {RLX_DISABLED, RLX_SAME_STEP, RLX_NEXT_STEP};

static rlx_config point(const rlx_transport *transport, uint32_t n) {
    rlx_config c;
    memset(&c, 0, sizeof c), memset(&memory, 0, sizeof memory);
    c.addresses = "one:1,two:2", c.environment = "Point-v0", c.frame_skip = 1, c.environments = n;
    c.observation.kind = RLX_BOX, c.observation.dtype = RLX_FLOAT32, c.observation.axes = 1, c.observation.shape = two;
    c.action.kind = RLX_DISCRETE, c.action.n = 3, c.transport = transport, c.retry_seconds = -1;
    return c;
}

static void say_actions(uint32_t n, int64_t first) {
    Part p = {{0}, 0};
    int64_t data[8] = {0};
    uint8_t shape[1];
    data[0] = first, shape[0] = (uint8_t)n;
    add_array(&p, RLX_INT64, shape, 1, data, 8 * (size_t)n);
    say(&memory, 2, &p);
}

static void say_returns(uint32_t n) {
    Part p = {{0}, 0};
    double data[8] = {0};
    add_bytes(&p, 1, data, 8 * (size_t)n);
    say(&memory, 3, &p);
}

/* The client's three messages of section 13, but for its name and version in the hello. */
static void test_bytes_of_the_page(void) {
    static const uint8_t init[] = {0, 0, 0, 0x14, 0x12, 0x12, 0x0a, 0x10, 8, 0x0b, 0x12, 2, 1, 2, 0x1a, 8, 0, 0, 0, 0x3f, 0, 0, 0x80, 0xbe};
    static const uint8_t step[] = {0, 0, 0, 0x1e, 0x1a, 0x1c, 0x0a, 8, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x12, 0x10,
                                   8, 0x0b, 0x12, 2, 1, 2, 0x1a, 8, 0, 0, 0x40, 0x3f, 0, 0, 0, 0};
    static const uint8_t spaces[] = {0x2a, 8, 'P', 'o', 'i', 'n', 't', '-', 'v', '0', 0x38, 1, 0x42, 7, 0x0a, 5, 8, 0x0b, 0x12, 1, 2,
                                     0x4a, 4, 0x12, 2, 8, 3, 0x50, 1, 0x5a, 1, 1, 0x60, 1};
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 1);
    float seen[2] = {0.5f, -0.25f};
    double reward = 1;
    const void *leaves[1];
    rlx_outcome outcome = {&reward, leaves, NULL, NULL, NULL, NULL, 0};
    Part hi = welcome(1048576, 256);
    char why[256];
    rlx_client *c = rlx_open(&config, why);
    leaves[0] = seen;
    say(&memory, 1, &hi), say_actions(1, 2), say_actions(1, 1);
    CHECK(rlx_init(c, leaves, NULL) == RLX_OK && *(const int64_t *)rlx_action(c, 0) == 2);
    CHECK(memcmp(memory.told + memory.size - sizeof init, init, sizeof init) == 0);
    CHECK(memcmp(memory.told + memory.size - sizeof init - sizeof spaces, spaces, sizeof spaces) == 0);
    CHECK(strcmp(rlx_session(c), "s1") == 0 && strcmp(rlx_algorithm(c), "da3c") == 0);
    seen[0] = 0.75f, seen[1] = 0;
    CHECK(rlx_step(c, &outcome) == RLX_OK && *(const int64_t *)rlx_action(c, 0) == 1);
    CHECK(memcmp(memory.told + memory.size - sizeof step, step, sizeof step) == 0);
    rlx_close(c);
}

static void test_refused_before_it_is_sent(void) {
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 3);
    float seen[6] = {0, 0, 0, 0, 0, 0};
    double reward[3] = {1, 1, 1};
    uint8_t mask[3] = {0, 0, 0};
    const void *leaves[1];
    rlx_episode episode = {0, 1, 1};
    rlx_outcome o = {reward, leaves, NULL, NULL, NULL, NULL, 0};
    Part hi = welcome(1048576, 2);
    char why[256];
    size_t told;
    rlx_client *c;
    int i;
    config.autoreset = habits, config.autoresets = 3, leaves[0] = seen;
    CHECK((c = rlx_open(&config, why)) != NULL);
    say(&memory, 1, &hi);
    for (i = 0; i < 4; i++) say_actions(3, 0);
    CHECK(rlx_metric(c, "before", 1) == 0); /* there is no connection */
    seen[5] = (float)(1e38 * 10);
    CHECK(rlx_init(c, leaves, NULL) == RLX_INVALID && memory.opened == 0);
    seen[5] = 0;
    CHECK(rlx_init(c, leaves, NULL) == RLX_OK);
    told = memory.size;
    CHECK(rlx_init(c, leaves, NULL) == RLX_INVALID);
    reward[1] = 2e15, CHECK(rlx_step(c, &o) == RLX_INVALID && strstr(rlx_reason(c), "environment 1")), reward[1] = 1;
    o.terminated = mask;
    mask[0] = 1, CHECK(rlx_step(c, &o) == RLX_INVALID), mask[0] = 0; /* DISABLED */
    o.terminated = NULL, o.truncated = mask;
    mask[1] = 1, CHECK(rlx_step(c, &o) == RLX_INVALID), mask[1] = 0; /* no final observation */
    o.final_observation = leaves, CHECK(rlx_step(c, &o) == RLX_INVALID), o.final_observation = NULL;
    o.episodes = &episode, o.episode_count = 1, CHECK(rlx_step(c, &o) == RLX_INVALID), o.episode_count = 0;
    CHECK(rlx_metric(c, "", 1) == RLX_INVALID && rlx_metric(c, "a", 2e30) == RLX_INVALID);
    CHECK(memory.size == told);
    CHECK(rlx_metric(c, "a", 1) == 1 && rlx_metric(c, "b", 1) == 1 && rlx_metric(c, "c", 1) == 0 && rlx_metric(c, "a", 2) == 1);
    CHECK(rlx_metric(c, "a234567890123456789012345678901234", 1) == 0);
    mask[2] = 1, CHECK(rlx_step(c, &o) == RLX_OK); /* NEXT_STEP: its episode ends, */
    CHECK(rlx_step(c, &o) == RLX_INVALID);         /* and cannot end while it begins */
    mask[2] = 0, CHECK(rlx_step(c, &o) == RLX_OK);
    CHECK(memory.told[memory.size - 5] == 0x32 && memory.told[memory.size - 1] == 1); /* first: 0, 0, 1 */
    CHECK(rlx_step(c, &o) == RLX_OK && memory.told[memory.size - 5] != 0x32);
    rlx_close(c);
}

static void test_connects_again(void) {
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 1);
    float seen[2] = {0, 0};
    double reward = 1;
    const void *leaves[1];
    rlx_outcome o = {&reward, leaves, NULL, NULL, NULL, NULL, 0};
    Part hi = welcome(1048576, 2), error = {{0}, 0}, end = {{0}, 0};
    char why[256];
    size_t told;
    double began;
    rlx_client *c;
    config.retry_seconds = 60, leaves[0] = seen;
    CHECK((c = rlx_open(&config, why)) != NULL);
    say(&memory, 1, &hi), say_actions(1, 0);
    CHECK(rlx_init(c, leaves, NULL) == RLX_OK);
    CHECK(rlx_step(c, &o) == RLX_INTERRUPTED && rlx_step(c, &o) == RLX_INTERRUPTED && memory.opened == 1);
    add_integer(&error, 1, 11), add_bytes(&error, 2, "full", 4), add_integer(&error, 3, 1), add_double(&error, 4, 0.75);
    say(&memory, 4, &error), say(&memory, 1, &hi), say_actions(1, 0);
    told = memory.size, began = rlx__now();
    CHECK(rlx_init(c, leaves, NULL) == RLX_OK && memory.opened == 3);
    CHECK(rlx__now() - began >= 0.25 + 0.75);
    CHECK(memory.told[told + 4] == 0x0a); /* a hello, with the session id before reports_episodes, at its end */
    CHECK(strcmp(rlx_session(c), "s1") == 0);
    add_integer(&end, 2, 123456), say(&memory, 5, &end);
    CHECK(rlx_step(c, &o) == RLX_FINISHED && rlx_global_step(c) == 123456);
    CHECK(rlx_init(c, leaves, NULL) == RLX_FINISHED && memory.opened == 3);
    rlx_close(c);
}

static void test_spaces_that_cannot_be(void) {
    static const uint32_t none[] = {0}, huge[] = {65536, 65536};
    static const double low[] = {1}, high[] = {0};
    static const char *const keys[] = {"a", "a"};
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 1);
    rlx_space parts[2];
    char why[256] = "";
    config.observation.shape = none, CHECK(rlx_open(&config, why) == NULL && why[0] != 0);
    config.observation.shape = huge, config.observation.axes = 2, CHECK(rlx_open(&config, why) == NULL);
    config.observation.shape = two, config.observation.axes = 1, config.observation.low = low, config.observation.high = high;
    config.observation.lows = config.observation.highs = 1, CHECK(rlx_open(&config, why) == NULL);
    config = point(&transport, 1), config.action.n = 0, CHECK(rlx_open(&config, why) == NULL);
    config = point(&transport, 1), parts[0] = parts[1] = config.action, memset(&config.action, 0, sizeof config.action);
    config.action.kind = RLX_DICT, config.action.parts = 2, config.action.spaces = parts, config.action.keys = keys;
    CHECK(rlx_open(&config, why) == NULL && strstr(why, "twice"));
    config = point(&transport, 1), config.environments = 65537, CHECK(rlx_open(&config, why) == NULL);
}

#ifdef COUNT_ALLOCATIONS
static void test_nothing_is_allocated_after_the_handshake(void) {
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 2);
    float seen[4] = {0, 0, 0, 0};
    double reward[2] = {1, 1};
    uint8_t ended[2] = {1, 0};
    const void *leaves[1];
    rlx_outcome o = {reward, leaves, ended, NULL, NULL, NULL, 0};
    Part hi = welcome(1048576, 2);
    char why[256];
    long before, episode, i;
    rlx_client *c;
    config.autoreset = &habits[2], config.autoresets = 1, leaves[0] = seen;
    CHECK((c = rlx_open(&config, why)) != NULL);
    before = allocations;
    CHECK(before > 0); /* they are counted */
    say(&memory, 1, &hi);
    CHECK(rlx_connect(c) == RLX_OK);
    before = allocations;
    for (episode = 0; episode < 100; episode++) {
        memory.from = memory.to = 0;
        say_actions(2, 0);
        CHECK(rlx_init(c, leaves, NULL) == RLX_OK);
        for (i = 0; i < 100; i++) {
            say_actions(2, 0);
            ended[0] = i % 2 == 0;
            CHECK(rlx_metric(c, "a", 1) == 1);
            CHECK(rlx_step(c, &o) == RLX_OK);
        }
        say_returns(2);
        ended[0] = 0;
        CHECK(rlx_reset(c, &o) == RLX_OK);
    }
    CHECK(allocations == before);
    printf("%ld allocations in 10000 steps\n", allocations - before);
    rlx_close(c);
}
#endif

int main(void) {
    test_bytes_of_the_page();
    test_refused_before_it_is_sent();
    test_connects_again();
    test_spaces_that_cannot_be();
    say_returns(1);
#ifdef COUNT_ALLOCATIONS
    test_nothing_is_allocated_after_the_handshake();
#endif
    printf(failures ? "%d failures\n" : "all passed\n", failures);
    return failures != 0;
}
