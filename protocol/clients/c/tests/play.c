/* Executes commands from standard input, one a line, and prints what it receives: see protocol/clients/README.md. */
#define _POSIX_C_SOURCE 200809L
#define RLX_IMPLEMENTATION
#include "../rlx.h"

static char line[1 << 22], *words[1 << 16];
static size_t word, count;

static char *take(void) {
    if (word == count) exit(9);
    return words[word++];
}

static long long integer(void) { return strtoll(take(), NULL, 10); }

static size_t hex(const char *text, uint8_t *to) {
    size_t i, size = text[0] == '-' ? 0 : strlen(text) / 2;
    unsigned byte;
    for (i = 0; i < size; i++) sscanf(text + 2 * i, "%2x", &byte), to[i] = (uint8_t)byte;
    return size;
}

static char *text(void) {
    char *from = take(), *to = (char *)calloc(1, strlen(from) + 1);
    hex(from, (uint8_t *)to);
    return to;
}

static double number(const char *from) {
    uint64_t bits = strtoull(from, NULL, 16);
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

static double *numbers(size_t *size) {
    size_t i, n = *size = (size_t)integer();
    double *all = (double *)calloc(n + 1, sizeof *all);
    for (i = 0; i < n; i++) all[i] = number(take());
    return all;
}

static uint32_t *shape(size_t *axes) {
    size_t i, n = *axes = (size_t)integer();
    uint32_t *all = (uint32_t *)calloc(n + 1, sizeof *all);
    for (i = 0; i < n; i++) all[i] = (uint32_t)integer();
    return all;
}

static rlx_space space(void) {
    rlx_space s;
    const char *kind = take();
    size_t i;
    memset(&s, 0, sizeof s);
    if (strcmp(kind, "box") == 0) {
        s.kind = RLX_BOX, s.dtype = (int)integer(), s.shape = shape(&s.axes);
        s.low = numbers(&s.lows), s.high = numbers(&s.highs);
    } else if (strcmp(kind, "discrete") == 0) {
        s.kind = RLX_DISCRETE, s.n = integer(), s.start = integer();
    } else if (strcmp(kind, "multi_binary") == 0) {
        s.kind = RLX_MULTI_BINARY, s.shape = shape(&s.axes);
    } else if (strcmp(kind, "multi_discrete") == 0) {
        int64_t *nvec = (int64_t *)calloc(s.axes = (size_t)integer(), sizeof *nvec);
        s.kind = RLX_MULTI_DISCRETE;
        for (i = 0; i < s.axes; i++) nvec[i] = integer();
        s.nvec = nvec;
    } else {
        rlx_space *parts = (rlx_space *)calloc(s.parts = (size_t)integer(), sizeof *parts);
        const char **keys = (const char **)calloc(s.parts, sizeof *keys);
        s.kind = kind[0] == 't' ? RLX_TUPLE : RLX_DICT;
        for (i = 0; i < s.parts; i++) {
            if (s.kind == RLX_DICT) keys[i] = text();
            parts[i] = space();
        }
        s.spaces = parts, s.keys = keys;
    }
    return s;
}

static const uint8_t *mask(void) {
    const char *from = take();
    size_t i;
    uint8_t *to = (uint8_t *)calloc(1, strlen(from));
    if (from[0] == '-') return NULL;
    for (i = 0; from[i] != 0; i++) to[i] = from[i] == '1';
    return to;
}

static const void *const *leaves(size_t n) {
    const void **all = (const void **)calloc(n, sizeof *all);
    size_t i;
    for (i = 0; i < n; i++) {
        uint8_t *data = (uint8_t *)malloc(strlen(words[word]) + 8);
        hex(take(), data);
        all[i] = data;
    }
    return all;
}

static void print(const void *data, size_t size) {
    size_t i;
    for (i = 0; i < size; i++) printf("%02x", ((const uint8_t *)data)[i]);
}

static void print_parameters(rlx_client *c) {
    const rlx_parameter *parameters;
    size_t size, i, j;
    if (!c->config.environment_parameters || rlx_parameters(c, &parameters, &size) != RLX_OK) return;
    printf("parameters");
    for (i = 0; i < size; i++) {
        printf(" "), print(parameters[i].name, strlen(parameters[i].name));
        for (j = 0; j < c->config.environments; j++) printf(" "), print(&parameters[i].values[j], 8);
    }
    puts("");
}

/* `idle`: NULL for a reset. */
static rlx_outcome outcome(const rlx_client *c, const uint8_t **idle, const uint8_t **chosen, const void *const **action) {
    rlx_outcome o;
    char *part;
    size_t size, n = c->observation.count, actions;
    rlx_episode *episodes = (rlx_episode *)calloc(65536, sizeof *episodes);
    memset(&o, 0, sizeof o);
    o.reward = numbers(&size);
    if (idle != NULL) o.terminated = mask();
    o.truncated = mask();
    if (idle != NULL) *idle = mask();
    *chosen = mask(), actions = *chosen != NULL ? c->action.count : 0;
    for (part = strtok(take(), "-,"); part != NULL; part = strtok(NULL, "-,")) {
        rlx_episode *e = &episodes[o.episode_count++];
        e->environment = (uint32_t)strtoul(part, &part, 10);
        e->episode_return = number(part + 1);
        e->length = (uint32_t)strtoul(strchr(part + 1, ':') + 1, NULL, 10);
    }
    o.episodes = episodes;
    if (idle != NULL) o.observation = leaves(n);
    if (word + actions < count) o.final_observation = leaves(n);
    *action = leaves(actions);
    return o;
}

static int command(rlx_client **client, rlx_config *config) {
    const char *what = take();
    rlx_client *c = *client;
    int verdict = RLX_OK;
    const uint8_t *idle, *chosen;
    const void *const *action;
    size_t i;
    if (strcmp(what, "connect") == 0) {
        char why[256];
        static int habits[65536];
        config->addresses = take(), config->environments = (uint32_t)integer(), config->mode = (int)integer();
        config->frame_skip = (uint32_t)integer(), config->reports_episodes = (int)integer();
        config->out_of_step = (int)integer(), config->chosen_actions = (int)integer();
        config->environment_parameters = (int)integer(), config->retry_seconds = -1;
        for (i = (size_t)integer(); config->autoresets < i;) habits[config->autoresets++] = (int)integer();
        config->autoreset = habits;
        config->environment = text(), config->host = text(), config->token = text(), config->session_id = text();
        config->observation = space(), config->action = space();
        if ((*client = c = rlx_open(config, why)) == NULL) return puts(why), 9;
        if ((verdict = rlx_connect(c)) == RLX_OK) {
            printf("welcome "), print(rlx_session(c), strlen(rlx_session(c)));
            printf(" "), print(rlx_algorithm(c), strlen(rlx_algorithm(c))), printf("\n");
            print_parameters(c);
        }
    } else if (strcmp(what, "metric") == 0) {
        char *name = text();
        if ((verdict = rlx_metric(c, name, number(take()))) > 0) verdict = RLX_OK;
    } else if (strcmp(what, "ping") == 0) {
        if ((verdict = rlx_alive(c)) == RLX_OK) puts("pong");
    } else if (strcmp(what, "reset") == 0) {
        rlx_outcome o = outcome(c, NULL, &chosen, &action);
        if ((verdict = rlx_reset_chosen(c, &o, chosen, action)) == RLX_OK) {
            printf("returns");
            for (i = 0; i < config->environments; i++) printf(" "), print(&rlx_returns(c)[i], 8);
            puts("");
        }
    } else {
        if (strcmp(what, "init") == 0) {
            const uint8_t *partial = mask();
            idle = mask();
            verdict = rlx_init_idle(c, leaves(c->observation.count), partial, idle);
        } else {
            rlx_outcome o = outcome(c, &idle, &chosen, &action);
            verdict = rlx_step_chosen(c, &o, idle, chosen, action);
        }
        if (verdict == RLX_OK) {
            printf("actions");
            for (i = 0; i < c->action.count; i++) printf(" "), print(rlx_action(c, i), c->action.leaf[i].size * config->environments);
            puts("");
            print_parameters(c);
        }
    }
    if (verdict == RLX_FINISHED) printf("finished %llu %s\n", (unsigned long long)rlx_global_step(c), rlx_reason(c));
    else if (verdict != RLX_OK) printf("%s %d %s\n", verdict == RLX_INVALID ? "invalid" : "lost", rlx_code(c), rlx_reason(c));
    return verdict == RLX_INVALID ? RLX_OK : verdict;
}

int main(void) {
    rlx_client *client = NULL;
    rlx_config config;
    int verdict = RLX_OK;
    memset(&config, 0, sizeof config);
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *kept = strdup(line), *part; /* addresses and tokens point into it */
        if (strcmp(line, "end\n") == 0) {
            rlx_close(client);
            client = NULL, verdict = RLX_OK, memset(&config, 0, sizeof config);
            puts("end");
        } else if (verdict == RLX_OK) { /* after a connection has ended, other commands are skipped */
            for (word = count = 0, part = strtok(kept, " \n"); part != NULL; part = strtok(NULL, " \n")) words[count++] = part;
            verdict = command(&client, &config);
        }
        if (verdict == 9) return 9;
        fflush(stdout);
    }
    return 0;
}
