/* CartPole as an RLX client:
 *   cartpole HOST:PORT[,HOST:PORT] [--environments N] [--autoreset disabled|same_step|next_step]
 *            [--mode train|exploit] [--episodes K] [--seed S] [--token-file FILE] */
#define _POSIX_C_SOURCE 200809L
#define RLX_IMPLEMENTATION
#include "../rlx.h"

#include <math.h>

typedef struct { double x, speed, angle, turning; int steps; } CartPole;

static uint64_t random_state;

/* Repeatable random numbers in [0, 1) (splitmix64). */
static double uniform(void) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) / 9007199254740992.0;
}

static void begin(CartPole *pole) {
    pole->x = 0.1 * uniform() - 0.05, pole->speed = 0.1 * uniform() - 0.05;
    pole->angle = 0.1 * uniform() - 0.05, pole->turning = 0.1 * uniform() - 0.05;
    pole->steps = 0;
}

/* One Euler step of 0.02 s: Barto, Sutton and Anderson 1983, with the constants of gymnasium's CartPole-v1. */
static void step(CartPole *pole, int64_t action, uint8_t *terminated, uint8_t *truncated) {
    double sine = sin(pole->angle), cosine = cos(pole->angle);
    double push = ((action == 1 ? 10 : -10) + 0.05 * pole->turning * pole->turning * sine) / 1.1;
    double twist = (9.8 * sine - cosine * push) / (0.5 * (4 / 3.0 - 0.1 * cosine * cosine / 1.1));
    double acceleration = push - 0.05 * twist * cosine / 1.1;
    pole->x += 0.02 * pole->speed, pole->speed += 0.02 * acceleration;
    pole->angle += 0.02 * pole->turning, pole->turning += 0.02 * twist;
    *terminated = fabs(pole->x) > 2.4 || fabs(pole->angle) > 12 * 3.14159265358979 / 180;
    *truncated = ++pole->steps >= 500 && !*terminated;
}

static void show(const CartPole *pole, float *row) {
    row[0] = (float)pole->x, row[1] = (float)pole->speed, row[2] = (float)pole->angle, row[3] = (float)pole->turning;
}

enum { MOST = 1024 };
static CartPole pole[MOST];
static float seen[MOST][4], final[MOST][4];
static double reward[MOST];
static uint8_t terminated[MOST], truncated[MOST], ended[MOST];
static const void *const observation[] = {seen}, *const final_observation[] = {final};
static long episodes, wanted;
static double total;

static int play(rlx_client *client, uint32_t n, int autoreset) {
    rlx_outcome outcome = {reward, observation, terminated, truncated, NULL, NULL, 0};
    uint32_t i;
    int verdict;
    for (i = 0; i < n; i++) begin(&pole[i]), show(&pole[i], seen[i]), ended[i] = 0;
    verdict = rlx_init(client, observation, NULL);
    while (verdict == RLX_OK && (wanted == 0 || episodes < wanted)) {
        const int64_t *action = (const int64_t *)rlx_action(client, 0);
        int any = 0;
        for (i = 0; i < n; i++) {
            reward[i] = 1, terminated[i] = truncated[i] = 0;
            if (ended[i]) begin(&pole[i]), reward[i] = 0, ended[i] = 0; /* NEXT_STEP: this step only begins an episode */
            else step(&pole[i], action[i], &terminated[i], &truncated[i]);
            show(&pole[i], seen[i]);
            if (!terminated[i] && !truncated[i]) continue;
            any = 1, episodes++, total += pole[i].steps;
            rlx_metric(client, "episode/length", pole[i].steps);
            if (autoreset == RLX_NEXT_STEP) ended[i] = 1;
            if (autoreset != RLX_SAME_STEP) continue;
            memcpy(final[i], seen[i], sizeof final[i]);
            begin(&pole[i]), show(&pole[i], seen[i]);
        }
        outcome.final_observation = any && autoreset == RLX_SAME_STEP ? final_observation : NULL;
        if (!any || autoreset != RLX_DISABLED) {
            verdict = rlx_step(client, &outcome);
            continue;
        }
        for (i = 0; i < n; i++) truncated[i] = !terminated[i]; /* DISABLED: all episodes end together */
        outcome.final_observation = observation;
        if ((verdict = rlx_reset(client, &outcome)) != RLX_OK) break;
        for (i = 0; i < n; i++) begin(&pole[i]), show(&pole[i], seen[i]);
        verdict = rlx_init(client, observation, NULL);
    }
    return verdict;
}

int main(int argc, char **argv) {
    static const uint32_t shape[] = {4};
    static const char *const habits[] = {"", "disabled", "same_step", "next_step"};
    static char token[4097], host[256];
    rlx_config config;
    int autoreset = RLX_SAME_STEP, verdict, i;
    char why[256];
    rlx_client *client;
    FILE *file;
    memset(&config, 0, sizeof config);
    config.environments = 1, config.mode = RLX_TRAIN;
    random_state = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
    for (i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (option[0] != '-') { config.addresses = option; continue; }
        if (++i == argc) return fprintf(stderr, "%s needs a value\n", option), 2;
        if (strcmp(option, "--environments") == 0) config.environments = (uint32_t)strtoul(argv[i], NULL, 10);
        else if (strcmp(option, "--mode") == 0) config.mode = strcmp(argv[i], "exploit") == 0 ? RLX_EXPLOIT : RLX_TRAIN;
        else if (strcmp(option, "--episodes") == 0) wanted = strtol(argv[i], NULL, 10);
        else if (strcmp(option, "--seed") == 0) random_state = strtoull(argv[i], NULL, 10);
        else if (strcmp(option, "--autoreset") == 0) {
            for (autoreset = 3; autoreset > 1 && strcmp(argv[i], habits[autoreset]) != 0; autoreset--) {}
        } else if (strcmp(option, "--token-file") == 0 && (file = fopen(argv[i], "r")) != NULL) {
            if (fgets(token, sizeof token, file) != NULL) token[strcspn(token, "\r\n")] = 0;
            fclose(file);
        } else return fprintf(stderr, "%s %s: unknown, or the file is missing\n", option, argv[i]), 2;
    }
    if (config.environments < 1 || config.environments > MOST) return fprintf(stderr, "--environments is 1 to %d\n", MOST), 2;
    gethostname(host, sizeof host - 1);
    config.environment = "CartPole", config.host = host, config.token = token, config.autoreset = &autoreset, config.autoresets = 1;
    config.observation.kind = RLX_BOX, config.observation.dtype = RLX_FLOAT32;
    config.observation.axes = 1, config.observation.shape = shape;
    config.action.kind = RLX_DISCRETE, config.action.n = 2;
    if ((client = rlx_open(&config, why)) == NULL) return fprintf(stderr, "%s\n", why), 2;
    do verdict = play(client, config.environments, autoreset);
    while (verdict == RLX_INTERRUPTED && (wanted == 0 || episodes < wanted)); /* interrupted: new episodes, a new connection */
    if (episodes > 0) printf("mean of %ld episodes: %.2f\n", episodes, total / (double)episodes);
    if (verdict == RLX_FINISHED) puts("training has finished");
    if (verdict < 0) fprintf(stderr, "%s\n", rlx_reason(client));
    i = rlx_code(client);
    rlx_close(client);
    return verdict >= 0 ? 0 : i >= 4 && i <= 7 ? 2 : 1; /* 2: a retry does not help */
}
