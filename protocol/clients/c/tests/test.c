/* Tests beyond the golden message sequences: the example of section 13, invalid arguments, reconnecting, and no
 * allocation after the handshake. */
#include "memory.h"
#include <math.h>
#include <signal.h>

#ifdef COUNT_ALLOCATIONS /* all allocations of this process: these functions wrap glibc's */
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

/* The client's three messages of section 13, except its name and version in the hello. */
static void test_example_bytes_of_specification(void) {
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

static void test_invalid_arguments_are_not_sent(void) {
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
    mask[2] = 1, CHECK(rlx_step(c, &o) == RLX_OK); /* NEXT_STEP: its episode ends, */
    CHECK(rlx_step(c, &o) == RLX_INVALID);         /* and cannot end while it begins */
    mask[2] = 0, CHECK(rlx_step(c, &o) == RLX_OK);
    CHECK(memory.told[memory.size - 5] == 0x32 && memory.told[memory.size - 1] == 1); /* first: 0, 0, 1 */
    CHECK(rlx_step(c, &o) == RLX_OK && memory.told[memory.size - 5] != 0x32);
    rlx_close(c);
}

static void note_reason(void *reasons, const char *reason, double seconds) {
    CHECK(seconds >= 0.25);
    strcat(strcat((char *)reasons, reason), "; ");
}

static void test_reconnects(void) {
    char reasons[256] = "";
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
    config.retry_seconds = 60, config.on_retry = note_reason, config.retry_context = reasons, leaves[0] = seen;
    CHECK((c = rlx_open(&config, why)) != NULL);
    say(&memory, 1, &hi), say_actions(1, 0);
    CHECK(rlx_init(c, leaves, NULL) == RLX_OK);
    CHECK(rlx_step(c, &o) == RLX_INTERRUPTED && rlx_step(c, &o) == RLX_INTERRUPTED && memory.opened == 1);
    add_integer(&error, 1, 11), add_bytes(&error, 2, "full", 4), add_integer(&error, 3, 1), add_double(&error, 4, 0.75);
    say(&memory, 4, &error), say(&memory, 1, &hi), say_actions(1, 0);
    told = memory.size, began = rlx__now();
    CHECK(rlx_init(c, leaves, NULL) == RLX_OK && memory.opened == 3);
    CHECK(rlx__now() - began >= 0.25 + 0.75);
    CHECK(strcmp(reasons, "the server's stream ended; full; ") == 0);
    CHECK(memory.told[told + 4] == 0x0a); /* a hello, with the session id before reports_episodes, at its end */
    CHECK(strcmp(rlx_session(c), "s1") == 0);
    add_integer(&end, 2, 123456), say(&memory, 5, &end);
    CHECK(rlx_step(c, &o) == RLX_FINISHED && rlx_global_step(c) == 123456);
    CHECK(rlx_init(c, leaves, NULL) == RLX_FINISHED && memory.opened == 3);
    rlx_close(c);
}

static void test_invalid_spaces(void) {
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
    config = point(&transport, 1), config.mode = 3, CHECK(rlx_open(&config, why) == NULL);
}

static const float nothing[8] = {0};
static const void *const zeros[] = {nothing};

/* A client in an episode. The server has sent the answers to hello and init. */
static rlx_client *playing(const rlx_config *config) {
    char why[256];
    Part hi = welcome(1048576, 256);
    rlx_client *c = rlx_open(config, why);
    say(&memory, 1, &hi), say_actions(config->environments, config->action.start);
    CHECK(rlx_init(c, zeros, NULL) == RLX_OK);
    return c;
}

/* A name as long as the server accepts, with lengths of one byte and of two. A longer one is dropped. */
static void test_long_names_of_metrics(void) {
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 1);
    Part pong = {{0}, 0};
    char name[130] = "";
    size_t size, told;
    rlx_client *c = playing(&config);
    for (size = 100; size <= 129; size++) {
        rlx__in in;
        rlx__field f;
        memset(name, 'a', size), told = memory.size;
        CHECK(rlx_metric(c, name, (double)size) == (size <= 128));
        say(&memory, 7, &pong);
        CHECK(rlx_alive(c) == RLX_OK);
        if (size > 128) { CHECK(memory.told[told + 4] == 0x32); break; } /* only the ping */
        in.at = memory.told + told + 4, in.end = in.at + memory.told[told + 3];
        CHECK(memory.told[told + 2] == 0 && *in.end == 0 && in.end[4] == 0x32);
        CHECK(rlx__next(&in, &f, 0) == 1 && f.number == 5 && in.at == in.end), in = f.bytes;
        CHECK(rlx__next(&in, &f, 0) == 1 && f.number == 1 && in.at == in.end), in = f.bytes;
        CHECK(rlx__next(&in, &f, 0) == 1 && f.number == 1 && (size_t)(f.bytes.end - f.bytes.at) == size);
        CHECK(rlx__next(&in, &f, 0) == 1 && f.number == 2 && rlx__double(f.bytes.at) == (double)size && in.at == in.end);
    }
    rlx_close(c);
}

static void test_discrete_with_negative_start(void) {
    static const int64_t said[] = {-1, 4, 5, -2, INT64_MAX, INT64_MIN};
    rlx_transport transport = memory_transport(&memory);
    size_t i;
    for (i = 0; i < 6; i++) {
        rlx_config config = point(&transport, 1);
        rlx_outcome o = {(const double *)nothing, zeros, NULL, NULL, NULL, NULL, 0};
        rlx_client *c;
        config.action.start = -1, config.action.n = 6, c = playing(&config);
        say_actions(1, said[i]);
        CHECK(rlx_step(c, &o) == (i < 2 ? RLX_OK : RLX_INTERRUPTED));
        rlx_close(c);
    }
}

/* Bounds on one side, and infinite bounds: also under -ffast-math. */
static void test_actions_of_half_bounded_boxes(void) {
    static const double inf = INFINITY, minus_inf = -INFINITY, zero = 0;
    static const struct { const double *low, *high; double said; int legal; } cases[] = {
        {&zero, &inf, 3, 1}, {&zero, &inf, -3, 0}, {&minus_inf, &zero, -3, 1}, {&minus_inf, &zero, 3, 0},
        {&minus_inf, &inf, 3, 1}, {&zero, NULL, 3, 1}, {&zero, NULL, -3, 0}, {NULL, &zero, -3, 1}, {NULL, &zero, 3, 0}};
    rlx_transport transport = memory_transport(&memory);
    size_t i;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        rlx_config config = point(&transport, 1);
        uint8_t shape[1] = {1};
        char why[256];
        Part hi = welcome(1048576, 2), p = {{0}, 0};
        rlx_client *c;
        memset(&config.action, 0, sizeof config.action), config.action.kind = RLX_BOX, config.action.dtype = RLX_FLOAT64;
        config.action.low = cases[i].low, config.action.lows = cases[i].low != NULL;
        config.action.high = cases[i].high, config.action.highs = cases[i].high != NULL;
        c = rlx_open(&config, why);
        add_array(&p, RLX_FLOAT64, shape, 1, &cases[i].said, 8);
        say(&memory, 1, &hi), say(&memory, 2, &p);
        CHECK(rlx_init(c, zeros, NULL) == (cases[i].legal ? RLX_OK : RLX_FAILED));
        rlx_close(c);
    }
}

/* Any flag other than 0 is true, and is sent as 1. In a step, only rows of ended episodes of a final observation count. */
static void test_flags_and_final_observations(void) {
    static const uint8_t partial[] = {0x12, 3, 0, 1, 0}, terminated[] = {0x1a, 3, 1, 0, 0};
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 3);
    uint8_t flags[3] = {0, 255, 0};
    int all[] = {RLX_SAME_STEP};
    float final[6] = {NAN, NAN, 1, 1, NAN, NAN};
    const void *const leaves[] = {final};
    rlx_outcome o = {(const double *)nothing, zeros, flags, NULL, leaves, NULL, 0};
    Part hi = welcome(1048576, 2);
    char why[256];
    rlx_client *c;
    config.autoreset = all, config.autoresets = 1, config.addresses = " one:1 , two:2";
    CHECK((c = rlx_open(&config, why)) != NULL);
    all[0] = RLX_DISABLED; /* it was copied */
    say(&memory, 1, &hi), say_actions(3, 0), say_actions(3, 0), say_returns(3);
    CHECK(rlx_init(c, zeros, flags) == RLX_OK);
    CHECK(memcmp(memory.told + memory.size - sizeof partial, partial, sizeof partial) == 0);
    flags[1] = 0, flags[0] = 2;
    CHECK(rlx_step(c, &o) == RLX_INVALID && strstr(rlx_reason(c), "NaN"));
    final[0] = final[1] = 0;
    CHECK(rlx_step(c, &o) == RLX_OK);
    {
        size_t at = memory.size;
        while (at > sizeof terminated && memcmp(memory.told + at - sizeof terminated, terminated, sizeof terminated) != 0) at--;
        CHECK(at > sizeof terminated);
    }
    o.terminated = NULL, o.truncated = flags;
    CHECK(rlx_reset(c, &o) == RLX_INVALID); /* every row counts */
    final[4] = final[5] = 0, CHECK(rlx_reset(c, &o) == RLX_OK);
    rlx_close(c);
}

/* The server's last message before a failed write is used; pings are not answered. */
static void test_last_message_of_server_is_reported(void) {
    rlx_transport transport = memory_transport(&memory);
    rlx_outcome o = {(const double *)nothing, zeros, NULL, NULL, NULL, NULL, 0};
    Part ping = {{0}, 0}, end = {{0}, 0}, refused = {{0}, 0};
    rlx_config config = point(&transport, 1);
    rlx_client *c = playing(&config);
    add_integer(&ping, 1, 7), add_integer(&end, 2, 123456);
    memory.broken = 1, say(&memory, 6, &ping), say_actions(1, 0), say(&memory, 5, &end);
    CHECK(rlx_step(c, &o) == RLX_FINISHED && rlx_global_step(c) == 123456);
    rlx_close(c);
    config = point(&transport, 1), c = playing(&config);
    add_integer(&refused, 1, 14), add_bytes(&refused, 2, "the agent failed", 16);
    memory.broken = 1, say(&memory, 4, &refused);
    CHECK(rlx_step(c, &o) == RLX_FAILED && rlx_code(c) == 14 && strcmp(rlx_reason(c), "the agent failed") == 0);
    rlx_close(c);
    config = point(&transport, 1), c = playing(&config);
    memory.broken = 1, say(&memory, 6, &ping), memory.said[memory.to++] = 0; /* and a part of a frame */
    CHECK(rlx_step(c, &o) == RLX_INTERRUPTED && strstr(rlx_reason(c), "writing"));
    rlx_close(c);
}

static void test_silence_timeout_has_minimum(void) {
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 1);
    rlx_client *c;
    heartbeat = 0.01, c = playing(&config), CHECK(memory.patience == 5), rlx_close(c);
    config = point(&transport, 1);
    heartbeat = 10, c = playing(&config), CHECK(memory.patience == 30), rlx_close(c);
}

static int listener;
static volatile sig_atomic_t ticks;

static void tick(int number) {
    int kept = errno;
    if (++ticks > 50) while (accept(listener, NULL, NULL) >= 0) {} /* after 0.1 s another connection is accepted */
    if (ticks > 3000) signal(number, SIG_IGN); /* so that a wait that restarts with each signal ends */
    errno = kept;
}

/* Signals do not change the length of a wait. */
static void test_waits_during_signals(void) {
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 1);
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    struct sigaction action;
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    rlx__socket server;
    char port[8], why[256];
    uint8_t byte;
    double began, took;
    int i, fd;
    rlx_client *c;
    memset(&action, 0, sizeof action), memset(&at, 0, sizeof at);
    action.sa_handler = tick, at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 0) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    fcntl(listener, F_SETFL, O_NONBLOCK), snprintf(port, sizeof port, "%u", ntohs(at.sin_port));
    for (i = 0; i < 3; i++) { /* they fill the queue: the next connection must wait */
        fd = socket(AF_INET, SOCK_STREAM, 0), fcntl(fd, F_SETFL, O_NONBLOCK);
        CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0 || errno == EINPROGRESS);
    }
    sigaction(SIGALRM, &action, NULL), setitimer(ITIMER_REAL, &often, NULL);
    CHECK(rlx__socket_open(&server, "127.0.0.1", port) == &server);
    began = rlx__now();
    CHECK(rlx__socket_read(&server, &byte, 1, 0.2) < 0);
    took = rlx__now() - began;
    CHECK(took >= 0.19 && took < 3); /* the kernel's ticks are some milliseconds */
    config.retry_seconds = 60, c = rlx_open(&config, why), began = rlx__now();
    CHECK(rlx__back_off(c) == RLX_OK && rlx__now() - began >= 0.25);
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(ticks > 50);
    rlx_close(c), close(server.fd), close(listener);
}

/* The place of the last frame that was sent. */
static size_t last_frame(void) {
    size_t at = 0, next;
    while ((next = at + 4 + ((size_t)memory.told[at + 2] << 8) + memory.told[at + 3]) < memory.size) at = next;
    return at;
}

/* Whether the last frame that was sent has these bytes. */
static int sent(const uint8_t *part, size_t size) {
    size_t at = last_frame();
    for (; at + size <= memory.size; at++) if (memcmp(memory.told + at, part, size) == 0) return 1;
    return 0;
}

/* Two players take turns: the example of section 8. Void rows are NaN. */
static void test_players_take_turns(void) {
    static const uint8_t asked[] = {0x60, 1, 0x78, 1}, second[] = {0x1a, 2, 0, 1}, comes[] = {0x32, 2, 0, 1, 0x42, 2, 1, 0};
    static const uint8_t again[] = {0x42, 2, 0, 1}, both[] = {0x1a, 2, 1, 1}, neither[] = {0x42, 2, 1, 1};
    static const uint8_t first[] = {0x32, 2}, all[] = {0x32, 2, 1, 1};
    static const float rows[3][4] = {{1, 2, NAN, NAN}, {NAN, NAN, 3, 4}, {NAN, NAN, NAN, NAN}};
    static const int habit = RLX_SAME_STEP;
    static const uint8_t masks[3][2] = {{0, 1}, {1, 0}, {1, 1}};
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 2);
    const void *leaves[1];
    double reward[2] = {0, 0};
    rlx_outcome o = {reward, leaves, NULL, NULL, NULL, NULL, 0};
    Part hi;
    char why[256];
    size_t told;
    rlx_client *c;
    int i;
    config.autoreset = &habit, config.autoresets = 1, config.out_of_step = 1, out_of_step = 1;
    CHECK((c = rlx_open(&config, why)) != NULL);
    hi = welcome(1048576, 2), say(&memory, 1, &hi);
    for (i = 0; i < 9; i++) say_actions(2, 0);
    CHECK(rlx_connect(c) == RLX_OK && sent(asked, sizeof asked));
    leaves[0] = rows[1], CHECK(rlx_init_idle(c, leaves, NULL, masks[0]) == RLX_INVALID); /* row 0 is not void */
    leaves[0] = rows[0], CHECK(rlx_init_idle(c, leaves, NULL, masks[0]) == RLX_OK && sent(second, sizeof second));
    told = memory.size, o.terminated = masks[0];
    CHECK(rlx_step_idle(c, &o, masks[1]) == RLX_INVALID); /* environment 1 is away: it has no episode to end */
    o.terminated = NULL;
    CHECK(rlx_step_idle(c, &o, masks[1]) == RLX_INVALID && memory.size == told); /* row 1 is not void */
    leaves[0] = rows[1], CHECK(rlx_step_idle(c, &o, masks[1]) == RLX_OK && sent(comes, sizeof comes));
    leaves[0] = rows[0], CHECK(rlx_step_idle(c, &o, masks[0]) == RLX_OK && sent(again, sizeof again) && !sent(first, 2));
    leaves[0] = rows[2], o.truncated = masks[2];
    CHECK(rlx_step_idle(c, &o, masks[2]) == RLX_INVALID && strstr(rlx_reason(c), "final observation"));
    o.truncated = NULL, o.terminated = masks[2];
    CHECK(rlx_step_idle(c, &o, masks[2]) == RLX_OK && sent(both, sizeof both) && sent(neither, sizeof neither));
    CHECK(rlx_step_idle(c, &o, masks[2]) == RLX_INVALID); /* both have left */
    o.terminated = NULL, CHECK(rlx_step_idle(c, &o, masks[2]) == RLX_OK && sent(neither, sizeof neither) && !sent(first, 2));
    leaves[0] = zeros[0], CHECK(rlx_step(c, &o) == RLX_OK && sent(all, sizeof all));
    o.truncated = masks[2], o.final_observation = zeros, leaves[0] = rows[2];
    CHECK(rlx_step_idle(c, &o, masks[2]) == RLX_OK);
    memory.to = memory.from, say_returns(2);
    CHECK(rlx_reset(c, &o) == RLX_OK && !sent(both + 1, 3)); /* they have left: nothing is truncated */
    rlx_close(c), out_of_step = 0;
}

static void test_idle_by_autoreset_mode(void) {
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 3);
    uint8_t ended[3] = {1, 0, 0}, idle[3] = {1, 1, 1};
    float seen[6] = {0, 0, NAN, NAN, NAN, NAN}, final[6] = {NAN, NAN, 0, 0, NAN, NAN};
    const void *const leaves[] = {seen}, *const finals[] = {final};
    rlx_outcome o = {(const double *)nothing, leaves, NULL, ended, NULL, NULL, 0};
    rlx_client *c = playing(&config);
    o.truncated = NULL;
    CHECK(rlx_step_idle(c, &o, idle) == RLX_INVALID && strstr(rlx_reason(c), "out_of_step"));
    say_returns(3), CHECK(rlx_reset(c, &o) == RLX_OK);
    CHECK(rlx_init_idle(c, zeros, NULL, idle) == RLX_INVALID && strstr(rlx_reason(c), "out_of_step"));
    rlx_close(c);
    config = point(&transport, 3), config.autoreset = habits, config.autoresets = 3, config.out_of_step = out_of_step = 1;
    c = playing(&config), o.truncated = ended;
    CHECK(rlx_step_idle(c, &o, idle) == RLX_INVALID && strstr(rlx_reason(c), "rlx_reset")); /* DISABLED */
    ended[0] = 0, ended[2] = 1;
    CHECK(rlx_step_idle(c, &o, idle) == RLX_INVALID && strstr(rlx_reason(c), "NaN")); /* NEXT_STEP */
    ended[1] = 1, seen[4] = seen[5] = 0, o.final_observation = finals, final[2] = NAN;
    CHECK(rlx_step_idle(c, &o, idle) == RLX_INVALID && strstr(rlx_reason(c), "NaN")); /* SAME_STEP */
    final[2] = 0, say_actions(3, 0), CHECK(rlx_step_idle(c, &o, idle) == RLX_OK);
    CHECK(!c->between[0] && c->between[1] && c->between[2]);
    rlx_close(c), out_of_step = 0;
}

/* A person takes over for some steps. Actions that were not chosen are NaN. */
static void test_chosen_actions(void) {
    static const uint8_t asked[] = {0x60, 1, 0x80, 1, 1}, field[] = {0x52, 0x1f, 8, 12, 0x12, 1, 3, 0x1a, 24};
    static const uint8_t taken[] = {0x4a, 3, 0, 1, 0, 0x52, 0x1f, 8, 12}, last[] = {0x2a, 3, 0, 1, 0, 0x32, 0x1f, 8, 12};
    static const uint8_t idle[3] = {0, 1, 0}, none[3] = {0, 0, 0};
    static const double low = -1, high = 1;
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 3);
    double own[3] = {NAN, 0.5, NAN};
    uint8_t chosen[3] = {0, 1, 0}, ended[3] = {0, 0, 1}, shape[1] = {3};
    const void *const action[] = {own};
    rlx_outcome o = {(const double *)nothing, zeros, NULL, NULL, NULL, NULL, 0};
    Part hi, p = {{0}, 0};
    char why[256];
    size_t told;
    int i;
    rlx_client *c = playing(&config);
    CHECK(rlx_step_chosen(c, &o, NULL, chosen, action) == RLX_INVALID && strstr(rlx_reason(c), "chosen_actions"));
    CHECK(rlx_reset_chosen(c, &o, chosen, action) == RLX_INVALID && strstr(rlx_reason(c), "chosen_actions"));
    rlx_close(c);
    config = point(&transport, 3), config.autoreset = habits, config.autoresets = 3, config.out_of_step = out_of_step = 1;
    config.chosen_actions = chosen_actions = 1, hi = welcome(1048576, 2);
    memset(&config.action, 0, sizeof config.action), config.action.kind = RLX_BOX, config.action.dtype = RLX_FLOAT64;
    config.action.low = &low, config.action.high = &high, config.action.lows = config.action.highs = 1;
    CHECK((c = rlx_open(&config, why)) != NULL);
    add_array(&p, RLX_FLOAT64, shape, 1, nothing, 24);
    for (say(&memory, 1, &hi), i = 0; i < 5; i++) say(&memory, 2, &p);
    CHECK(rlx_init(c, zeros, NULL) == RLX_OK), told = memory.size;
    CHECK(rlx_step_chosen(c, &o, NULL, chosen, NULL) == RLX_INVALID && strstr(rlx_reason(c), "missing"));
    own[1] = 2, CHECK(rlx_step_chosen(c, &o, NULL, chosen, action) == RLX_INVALID && strstr(rlx_reason(c), "of the action"));
    own[1] = NAN, CHECK(rlx_step_chosen(c, &o, NULL, chosen, action) == RLX_INVALID), own[1] = 0.5;
    CHECK(rlx_step_chosen(c, &o, idle, chosen, action) == RLX_INVALID && strstr(rlx_reason(c), "took none"));
    CHECK(memory.size == told);
    CHECK(rlx_step_chosen(c, &o, NULL, chosen, action) == RLX_OK && sent(taken, sizeof taken));
    CHECK(rlx_step_chosen(c, &o, NULL, none, action) == RLX_OK && !sent(taken, 2) && !sent(field, sizeof field));
    ended[1] = 1, o.terminated = ended; /* 1 leaves with its own action; 2 ends */
    CHECK(rlx_step_chosen(c, &o, idle, chosen, action) == RLX_OK && sent(taken, sizeof taken));
    o.terminated = NULL, own[2] = 0;
    CHECK(rlx_step_chosen(c, &o, NULL, chosen, action) == RLX_INVALID); /* 1 comes, and 2 begins an episode */
    CHECK(rlx_reset_chosen(c, &o, chosen, action) == RLX_INVALID);      /* both are between two episodes */
    chosen[1] = 0, chosen[2] = 1, CHECK(rlx_step_chosen(c, &o, NULL, chosen, action) == RLX_INVALID);
    CHECK(rlx_step(c, &o) == RLX_OK);
    memory.to = memory.from, say_returns(3), chosen[1] = 1, chosen[2] = 0;
    own[1] = -2, CHECK(rlx_reset_chosen(c, &o, chosen, action) == RLX_INVALID), own[1] = -1;
    CHECK(rlx_reset_chosen(c, &o, chosen, action) == RLX_OK && sent(last, sizeof last));
    rlx_close(c), c = rlx_open(&config, why), memory.from = memory.to = memory.size = 0;
    say(&memory, 1, &hi), CHECK(rlx_connect(c) == RLX_OK && sent(asked, 2) && sent(asked + 2, 3));
    rlx_close(c), c = rlx_open(&config, why), memory.from = memory.to = 0;
    hi = welcome(2 * 3 * 8 + 3 * 8 - 1, 2), say(&memory, 1, &hi); /* observations in SAME_STEP, and actions */
    CHECK(rlx_connect(c) == RLX_FAILED && rlx_code(c) == 9);
    rlx_close(c), out_of_step = chosen_actions = 0;
}

static int parameter_values_are(rlx_client *c, double gravity0, double gravity1, double size0, double size1) {
    const rlx_parameter *p;
    size_t count;
    return rlx_parameters(c, &p, &count) == RLX_OK && count == 2 && strcmp(p[0].name, "gravity") == 0 &&
           strcmp(p[1].name, "size") == 0 && p[0].values[0] == gravity0 && p[0].values[1] == gravity1 &&
           p[1].values[0] == size0 && p[1].values[1] == size1;
}

/* Actions of two environments, with values for the environments in `of`. */
static void say_new_parameters(const uint8_t *of, size_t ofs, const double *values, size_t count) {
    static const uint8_t shape[] = {2};
    Part p = {{0}, 0};
    size_t i;
    for (i = 0; i < count; i++) add_double(&p, 3, values[i]); /* the order and the form of fields are free */
    for (i = 0; i < ofs; i++) add_integer(&p, 2, of[i]);
    add_array(&p, RLX_INT64, shape, 1, nothing, 16), say(&memory, 2, &p);
}

static void test_environment_parameters(void) {
    static const uint8_t asked[] = {0x60, 1, 0x88, 1, 1}, all[] = {0x12, 2, 1, 1}, second[] = {1}, both[] = {0, 1};
    static const double values[] = {-7, 1e30, 8, 9};
    char reasons[256] = "";
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 2);
    rlx_outcome o = {(const double *)nothing, zeros, NULL, NULL, NULL, NULL, 0};
    const rlx_parameter *parameters;
    size_t count;
    Part hi, none;
    char why[256];
    rlx_client *c = rlx_open(&config, why);
    CHECK(rlx_parameters(c, &parameters, &count) == RLX_INVALID && strstr(rlx_reason(c), "environment_parameters"));
    rlx_close(c);
    config.environment_parameters = environment_parameters = 1, none = hi = welcome(1048576, 2), add_parameters(&hi, 2);
    config.retry_seconds = 60, config.on_retry = note_reason, config.retry_context = reasons, memory.size = 0;
    CHECK((c = rlx_open(&config, why)) != NULL);
    say(&memory, 1, &hi);
    CHECK(parameter_values_are(c, 1, 3, 2, 4) && memory.opened == 1 && sent(asked, 2) && sent(asked + 2, 3));
    say_new_parameters(second, 1, values, 2);
    CHECK(rlx_init(c, zeros, NULL) == RLX_OK && !sent(all, sizeof all) && parameter_values_are(c, 1, -7, 2, 1e30));
    say_new_parameters(both, 2, values, 4), say_new_parameters(NULL, 0, NULL, 0);
    CHECK(rlx_step(c, &o) == RLX_OK && rlx_step(c, &o) == RLX_OK && parameter_values_are(c, -7, 8, 1e30, 9));
    CHECK(rlx_step(c, &o) == RLX_INTERRUPTED);
    say(&memory, 1, &hi), say_actions(2, 0); /* the parameters of the new connection were not read: all are partial */
    CHECK(rlx_init(c, zeros, NULL) == RLX_OK && memory.opened == 2 && sent(all, sizeof all));
    CHECK(rlx_step(c, &o) == RLX_INTERRUPTED);
    say(&memory, 1, &hi);
    CHECK(parameter_values_are(c, 1, 3, 2, 4) && memory.opened == 3);
    say_actions(2, 0), CHECK(rlx_init(c, zeros, NULL) == RLX_OK && memory.opened == 3 && !sent(all, sizeof all));
    CHECK(rlx_step(c, &o) == RLX_INTERRUPTED);
    say(&memory, 1, &none), say_new_parameters(both, 2, NULL, 0); /* a server without parameters */
    CHECK(rlx_init(c, zeros, NULL) == RLX_OK && !sent(all, sizeof all));
    CHECK(rlx_parameters(c, &parameters, &count) == RLX_OK && count == 0 && memory.opened == 4);
    rlx_close(c), environment_parameters = 0;
}

static void test_wrong_parameters(void) {
    static const struct { uint8_t of[2]; size_t ofs; double values[4]; size_t count; } cases[] = {
        {{0, 0}, 1, {1}, 1}, {{0, 0}, 1, {1, 2, 3}, 3}, {{0, 0}, 1, {1, NAN}, 2}, {{0, 0}, 1, {INFINITY, 1}, 2},
        {{0, 0}, 1, {-2e30, 1}, 2}, {{1, 0}, 2, {1, 2, 3, 4}, 4}, {{1, 1}, 2, {1, 2, 3, 4}, 4}, {{2, 0}, 1, {1, 2}, 2},
        {{0, 0}, 0, {1, 2}, 2}, {{0, 0}, 1, {0}, 0}};
    static const char *const names[] = {"", "gravity", "a\nb", "a\x7f", "\xc2\x85", "\xff"};
    rlx_transport transport = memory_transport(&memory);
    size_t i;
    for (i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) { /* without the capability, all are wrong */
        rlx_config config = point(&transport, 2);
        Part hi;
        char why[256];
        rlx_client *c;
        config.environment_parameters = environment_parameters = i % 2, hi = welcome(1048576, 2);
        if (environment_parameters) add_parameters(&hi, 2);
        CHECK((c = rlx_open(&config, why)) != NULL);
        say(&memory, 1, &hi), say_new_parameters(cases[i / 2].of, cases[i / 2].ofs, cases[i / 2].values, cases[i / 2].count);
        CHECK(rlx_init(c, zeros, NULL) == RLX_FAILED && rlx_code(c) == 8);
        rlx_close(c);
    }
    environment_parameters = 1;
    for (i = 0; i <= sizeof names / sizeof *names; i++) { /* at last, too few values */
        int named = i < sizeof names / sizeof *names;
        rlx_config config = point(&transport, named ? 2 : 65536);
        Part hi = welcome(1048576, 2);
        char why[256];
        rlx_client *c;
        config.environment_parameters = 1, add_parameters(&hi, 2);
        if (named) add_bytes(&hi, 9, names[i], strlen(names[i])), add_bytes(&hi, 10, nothing, 16);
        CHECK((c = rlx_open(&config, why)) != NULL);
        say(&memory, 1, &hi);
        CHECK(rlx_connect(c) == RLX_FAILED && rlx_code(c) == (named && names[i][0] == '\xff' ? 1 : 8));
        rlx_close(c);
    }
    environment_parameters = 0;
}

static rlx_space many_bounds(void) {
    static double bounds[9000]; /* more than 64 KiB */
    static const uint32_t shape[1] = {9000};
    rlx_space s;
    memset(&s, 0, sizeof s), s.kind = RLX_BOX, s.dtype = RLX_FLOAT64, s.axes = 1, s.shape = shape;
    s.low = bounds, s.lows = 9000;
    return s;
}

/* A server may send a longer welcome with parameters, but the hello has the limit of all hellos. */
static void test_long_hello_is_not_sent(void) {
    int i;
    for (i = 0; i < 2; i++) {
        rlx_transport transport = memory_transport(&memory);
        rlx_config config = point(&transport, 64);
        char why[256];
        rlx_client *c;
        config.action = many_bounds(), config.environment_parameters = i, config.retry_seconds = 60;
        CHECK((c = rlx_open(&config, why)) != NULL), memory.size = 0;
        CHECK(rlx_connect(c) == RLX_FAILED && strstr(rlx_reason(c), "use one bound for all elements") && memory.size == 0);
        CHECK(rlx_code(c) == 9 && memory.opened == 1);
        rlx_close(c);
    }
}

/* At all depths. The bounds of actions are sent. */
static void test_bounds_of_observations_are_left_out_of_a_long_hello(void) {
    static const double bounds[2] = {-3, 5};
    static const char *const keys[1] = {"key"};
    rlx_transport transport = memory_transport(&memory);
    rlx_config config = point(&transport, 1);
    rlx_space many = many_bounds(), in_tuple;
    Part hi = welcome(1048576, 2), action = {{0}, 0};
    char why[256];
    rlx_client *c;
    size_t i, found = 0;
    memset(&config.observation, 0, sizeof config.observation), in_tuple = config.observation;
    in_tuple.kind = RLX_TUPLE, in_tuple.parts = 1, in_tuple.spaces = &many;
    config.observation.kind = RLX_DICT, config.observation.parts = 1, config.observation.spaces = &in_tuple;
    config.observation.keys = keys;
    config.action = many, config.action.shape = two, config.action.low = bounds, config.action.lows = 2;
    add_bytes(&action, 3, bounds, sizeof bounds);
    CHECK((c = rlx_open(&config, why)) != NULL);
    say(&memory, 1, &hi);
    CHECK(rlx_connect(c) == RLX_OK && memory.size < 200);
    for (i = 0; i + action.size <= memory.size; i++) found += memcmp(memory.told + i, action.bytes, action.size) == 0;
    CHECK(found == 1);
    rlx_close(c);
}

/* The flag must be in the hello and in the welcome, or in neither. */
static void test_flag_of_welcome(void) {
    static const char *const names[] = {"environments out of step", "actions of the client", "parameters of environments"};
    int k;
    for (k = 0; k < 12; k++) {
        rlx_transport transport = memory_transport(&memory);
        rlx_config config = point(&transport, 1);
        int i = k % 4, *asks[3], *has[] = {&out_of_step, &chosen_actions, &environment_parameters};
        Part hi;
        char why[256];
        rlx_client *c;
        asks[0] = &config.out_of_step, asks[1] = &config.chosen_actions, asks[2] = &config.environment_parameters;
        *asks[k / 4] = i & 1, config.retry_seconds = 60, *has[k / 4] = i >> 1, hi = welcome(1048576, 2);
        CHECK((c = rlx_open(&config, why)) != NULL);
        say(&memory, 1, &hi);
        if (i == 0 || i == 3) CHECK(rlx_connect(c) == RLX_OK && last_frame() == 0);
        else {
            CHECK(rlx_connect(c) == RLX_FAILED && rlx_code(c) == (i == 1 ? 6 : 8) && memory.opened == 1);
            CHECK(memory.told[last_frame() + 4] == 0x42); /* bye */
        }
        if (i == 1) CHECK(strstr(rlx_reason(c), names[k / 4]) != NULL);
        if (i == 2) CHECK(strstr(rlx_reason(c), "the server's mistake") != NULL);
        rlx_close(c), *has[k / 4] = 0;
    }
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
    test_example_bytes_of_specification();
    test_invalid_arguments_are_not_sent();
    test_reconnects();
    test_invalid_spaces();
    test_long_names_of_metrics();
    test_discrete_with_negative_start();
    test_actions_of_half_bounded_boxes();
    test_flags_and_final_observations();
    test_last_message_of_server_is_reported();
    test_silence_timeout_has_minimum();
    test_waits_during_signals();
    test_players_take_turns();
    test_idle_by_autoreset_mode();
    test_chosen_actions();
    test_environment_parameters();
    test_wrong_parameters();
    test_long_hello_is_not_sent();
    test_bounds_of_observations_are_left_out_of_a_long_hello();
    test_flag_of_welcome();
#ifdef COUNT_ALLOCATIONS
    test_nothing_is_allocated_after_the_handshake();
#endif
    printf(failures ? "%d failures\n" : "all passed\n", failures);
    return failures != 0;
}
