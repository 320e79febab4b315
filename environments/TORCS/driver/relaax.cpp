// A robot of TORCS that an agent drives over RLX (protocol/RLX.md), with the client for C (protocol/clients/c/rlx.h).
//
// A step of the environment is `frame skip` calls of the robot (0.02 s each). README.md in the parent folder describes
// observations and actions. Angles are in radians to the left, lengths in metres, times in seconds.
// Each episode places the car again in the running race, because TORCS itself places cars only once per race.
#define RLX_IMPLEMENTATION
#include <rlx.h>

#include <cmath>
#include <csignal>
#include <cstdarg>
#include <random>
#include <string>

#include <car.h>
#include <raceman.h>
#include <robot.h>
#include <robottools.h>
#include <tgf.h>
#include <track.h>

#include "aids.h"
#include "edges.h"

extern tRmInfo *ReInfo; // the race with its simulation, from libraceengine

namespace {

const double TICK = RCM_MAX_DT_ROBOTS;
const double LEAVING_COSTS = 20;            // metres, as rewards are
const double STUCK_SECONDS = 5, STUCK_METRES = 5;
const char *const SECTION = "RLX";          // section of relaax.xml

enum { OBSERVED = 10 + 2 + RAYS + 1, DONE = 2 };

volatile sig_atomic_t end_requested = 0;

void request_end(int) { end_requested = 1; }

// Print a message for the program that started TORCS, among the output of TORCS itself.
void report(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    fputs("relaax ", stdout), vprintf(format, rest), fputc('\n', stdout), fflush(stdout);
    va_end(rest);
}

class Driver {
  public:
    // Read relaax.xml; a missing key has its default.
    void open(tCarElt *car) {
        void *xml = car->_paramsHandle;
        address_ = GfParmGetStr(xml, SECTION, "address", "localhost:7001");
        name_ = GfParmGetStr(xml, SECTION, "environment", "TORCS");
        skip_ = (int)GfParmGetNum(xml, SECTION, "frame skip", NULL, 5);
        laps_ = GfParmGetNum(xml, SECTION, "laps", NULL, 1);
        anywhere_ = strcmp(GfParmGetStr(xml, SECTION, "start", "line"), "anywhere") == 0;
        random_.seed((unsigned)GfParmGetNum(xml, SECTION, "seed", NULL, 0));
        most_steps_ = (long)GfParmGetNum(xml, SECTION, "steps", NULL, 0);
        most_episodes_ = (long)GfParmGetNum(xml, SECTION, "episodes", NULL, 0);
        record_ = GfParmGetStr(xml, SECTION, "record", "");
        edges_.measure(ReInfo->track);
        if (!record_.empty()) begin_record();
        connect(GfParmGetNum(xml, SECTION, "retry seconds", NULL, 300),
                strcmp(GfParmGetStr(xml, SECTION, "mode", "train"), "exploit") == 0);
    }

    // One call of the robot: the simulation continues with the controls in car->ctrl.
    void drive(tCarElt *car, tSituation *s) {
        if (s->currentTime < 0) { // the race has not begun
            memset(&car->ctrl, 0, sizeof car->ctrl);
            car->_brakeCmd = 1;
            return;
        }
        if (ticks_ < 0) begin(car, s);
        else advance(car, s);
        control(car);
    }

  private:
    void connect(double retry_seconds, bool exploit) {
        static const uint32_t observed[] = {OBSERVED}, done[] = {DONE};
        static const double low[] = {-1}, high[] = {1};
        static char why[256];
        rlx_config config;
        memset(&config, 0, sizeof config);
        config.addresses = address_, config.environment = name_, config.token = getenv("RELAAX_TORCS_TOKEN");
        config.observation.kind = config.action.kind = RLX_BOX;
        config.observation.dtype = config.action.dtype = RLX_FLOAT32;
        config.observation.axes = config.action.axes = 1;
        config.observation.shape = observed, config.action.shape = done;
        config.action.lows = config.action.highs = 1, config.action.low = low, config.action.high = high;
        config.frame_skip = (uint32_t)skip_, config.mode = exploit ? RLX_EXPLOIT : RLX_TRAIN;
        config.retry_seconds = retry_seconds > 0 ? retry_seconds : -1;
        client_ = rlx_open(&config, why);
        if (client_ == NULL) report("failed 0 %s", why), end(1);
    }

    [[noreturn]] void end(int code) {
        report("done %ld", steps_);
        rlx_close(client_);
        if (path_ != NULL) fclose(path_);
        _exit(code); // TORCS itself has nothing to save
    }

    // Place the car and get the first action.
    void begin(tCarElt *car, tSituation *s) {
        place(car, s);
        ticks_ = 0, progress_ = sum_ = reward_ = 0, length_ = 0, action_[0] = action_[1] = 0;
        at_ = edges_.along(car), stuck_from_ = 0, stuck_since_ = 0, episode_++;
        record(car);
        observe(car);
        const void *leaves[] = {observation_};
        check_result(rlx_init(client_, leaves, NULL));
        take_action();
    }

    // Evaluate a call; at the end of a step or an episode, send it to the agent.
    void advance(tCarElt *car, tSituation *s) {
        double now = edges_.along(car), moved = now - at_;
        if (moved < -edges_.length() / 2) moved += edges_.length();
        if (moved > edges_.length() / 2) moved -= edges_.length();
        at_ = now, progress_ += moved, reward_ += moved, ticks_++;
        record(car);
        const char *why = end_reason(car);
        bool finished = laps_ > 0 && progress_ >= laps_ * edges_.length();
        if (why != NULL) reward_ -= LEAVING_COSTS;
        if (why == NULL && !finished && ticks_ % skip_ != 0) return;
        observe(car);
        sum_ += reward_, length_++, steps_++;
        const void *leaves[] = {observation_};
        uint8_t cut = why == NULL;
        rlx_outcome outcome = {&reward_, leaves, NULL, NULL, NULL, NULL, 0};
        if (why == NULL && !finished) {
            int result = rlx_step(client_, &outcome);
            reward_ = 0;
            if (result == RLX_INTERRUPTED) begin(car, s);
            else check_result(result), take_action();
        } else {
            outcome.observation = NULL, outcome.truncated = &cut, outcome.final_observation = cut ? leaves : NULL;
            rlx_metric(client_, "distance", progress_);
            rlx_metric(client_, "mean_speed", progress_ / (ticks_ * TICK));
            if (finished) rlx_metric(client_, "lap_seconds", ticks_ * TICK / laps_);
            int result = rlx_reset(client_, &outcome);
            if (result != RLX_INTERRUPTED) {
                check_result(result);
                report("episode %.17g %ld %.2f %.2f %s", sum_, length_, progress_, ticks_ * TICK, finished ? "finished" : why);
                if (path_ != NULL) fflush(path_);
                if (most_episodes_ > 0 && ++episodes_ >= most_episodes_) end(0);
            }
            begin(car, s);
        }
        if (most_steps_ > 0 && steps_ >= most_steps_) end(0);
    }

    // Reason why the episode is over, or NULL.
    const char *end_reason(tCarElt *car) {
        if (fabs(car->_trkPos.toMiddle) > car->_trkPos.seg->width / 2) return "left";
        if (cos(edges_.angle(car)) < 0) return "backward";
        if (progress_ - stuck_from_ >= STUCK_METRES) stuck_from_ = progress_, stuck_since_ = ticks_;
        return (ticks_ - stuck_since_) * TICK > STUCK_SECONDS ? "stuck" : NULL;
    }

    void check_result(int result) {
        if (result == RLX_FINISHED) report("finished %s", rlx_reason(client_)), end(0);
        if (result != RLX_OK) report("failed %d %s", rlx_code(client_), rlx_reason(client_)), end(1);
        if (end_requested) end(0);
    }

    void take_action() { memcpy(action_, rlx_action(client_, 0), sizeof action_); }

    void observe(tCarElt *car) {
        float *to = observation_;
        *to++ = (float)edges_.angle(car);
        *to++ = 2 * car->_trkPos.toMiddle / car->_trkPos.seg->width;
        *to++ = car->_speed_x / 50, *to++ = car->_speed_y / 50, *to++ = car->_speed_z / 50;
        *to++ = car->_yaw_rate;
        for (int i = 0; i < 4; i++) *to++ = (car->_wheelSpinVel(i) * car->_wheelRadius(i) - car->_speed_x) / 50;
        *to++ = car->_enginerpm / car->_enginerpmRedLine;
        *to++ = action_[0], *to++ = action_[1];
        edges_.measure(car, to);
    }

    void control(tCarElt *car) {
        memset(&car->ctrl, 0, sizeof car->ctrl);
        car->_steerCmd = action_[0];
        // A pedal of 0 accelerates a little, so that an untrained policy drives.
        double pedal = action_[1];
        car->_gearCmd = gear(car);
        if (pedal >= -0.5) car->_accelCmd = without_spin(car, (pedal + 0.5) / 1.5);
        else car->_brakeCmd = without_locking(car, (-0.5 - pedal) / 0.5);
    }

    // Place the car at rest on the start line, or anywhere on the track, and restart the simulation.
    void place(tCarElt *car, tSituation *s) {
        std::uniform_real_distribution<double> unit(0, 1);
        double from = anywhere_ ? unit(random_) * edges_.length() : 0, side = anywhere_ ? unit(random_) - 0.5 : 0;
        double turned = anywhere_ ? (unit(random_) - 0.5) * 0.4 : 0;
        tTrackSeg *seg = ReInfo->track->seg->next; // the first one
        while (from > seg->lgfromstart + seg->length && seg->next->lgfromstart > seg->lgfromstart) seg = seg->next;
        ReInfo->_reSimItf.shutdown();
        ReInfo->_reSimItf.init(s->_ncars, ReInfo->track, ReInfo->raceRules.fuelFactor, ReInfo->raceRules.damageFactor);
        memset(&car->pub, 0, sizeof car->pub);
        tTrkLocPos *at = &car->_trkPos;
        at->seg = seg, at->type = TR_LPOS_MAIN;
        at->toStart = (tdble)((from - seg->lgfromstart) / (seg->type == TR_STR ? 1 : seg->radius));
        at->toRight = (tdble)(seg->width * (0.5 + side / 2));
        RtTrackLocal2Global(at, &car->_pos_X, &car->_pos_Y, TR_TORIGHT);
        car->_yaw = RtTrackSideTgAngleL(at) + (tdble)turned;
        car->_pos_Z = RtTrackHeightL(at) + 0.3f;
        NORM0_2PI(car->_yaw);
        ReInfo->_reSimItf.config(car, ReInfo);
        memset(&car->ctrl, 0, sizeof car->ctrl);
        car->_brakeCmd = 1;
        for (int i = 0; i < 500; i++) ReInfo->_reSimItf.update(s, RCM_MAX_DT_SIMU, -1); // as TORCS does before a race
        // Reset the clock, too: its rounding decides which calls are 0.022 s apart, and so changes the path of a car.
        ReInfo->_reLastTime = s->currentTime = 0;
        tReCarInfo *info = &ReInfo->_reCarInfo[car->index];
        info->prevTrkPos = car->_trkPos, info->lapFlag = 0, info->sTime = 0;
        car->_laps = 0, car->_remainingLaps = s->_totLaps, car->_state = 0;
    }

    void begin_record() {
        FILE *file = fopen((record_ + "/track.csv").c_str(), "w");
        path_ = fopen((record_ + "/path.csv").c_str(), "w");
        if (file == NULL || path_ == NULL) report("failed 0 cannot write to %s", record_.c_str()), end(1);
        edges_.write(file);
        fputs("episode,seconds,along,x,y,speed,offset,steer,pedal\n", path_);
        fclose(file);
    }

    void record(tCarElt *car) {
        if (path_ == NULL) return;
        fprintf(path_, "%ld,%.2f,%.2f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f\n", episode_, ticks_ * TICK, at_, car->_pos_X, car->_pos_Y,
                car->_speed_x, car->_trkPos.toMiddle, action_[0], action_[1]);
    }

    rlx_client *client_ = NULL;
    const char *address_ = "", *name_ = "";
    std::string record_;
    FILE *path_ = NULL;
    Edges edges_;
    std::mt19937 random_;
    int skip_ = 1;
    double laps_ = 0, progress_ = 0, sum_ = 0, reward_ = 0, at_ = 0, stuck_from_ = 0;
    bool anywhere_ = false;
    long ticks_ = -1, stuck_since_ = 0, length_ = 0, steps_ = 0, most_steps_ = 0, episodes_ = 0, most_episodes_ = 0, episode_ = 0;
    float observation_[OBSERVED], action_[DONE];
};

Driver driver;

void new_track(int, tTrack *, void *, void **settings, tSituation *) { *settings = NULL; }
void new_race(int, tCarElt *car, tSituation *) { driver.open(car); }
void drive(int, tCarElt *car, tSituation *s) { driver.drive(car, s); }
int pit(int, tCarElt *, tSituation *) { return ROB_PIT_IM; }
void shut_down(int) {}

int interface(int index, void *to) {
    tRobotItf *robot = (tRobotItf *)to;
    robot->rbNewTrack = new_track, robot->rbNewRace = new_race, robot->rbDrive = drive;
    robot->rbPitCmd = pit, robot->rbShutdown = shut_down, robot->rbEndRace = NULL, robot->index = index;
    return 0;
}

} // namespace

extern "C" int relaax(tModInfo *module) {
    signal(SIGTERM, request_end);
    memset(module, 0, MAX_MOD_ITF * sizeof(tModInfo));
    module->name = strdup("relaax");
    module->desc = strdup("driven by an agent through RLX");
    module->fctInit = interface, module->gfId = ROB_IDENT, module->index = 1;
    return 0;
}
