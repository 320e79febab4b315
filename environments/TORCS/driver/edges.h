// The edges of a track as points, and their distances from a car.
#ifndef RELAAX_EDGES_H
#define RELAAX_EDGES_H

#include <cmath>
#include <cstdio>
#include <vector>

#include <car.h>
#include <robottools.h>
#include <track.h>

// Directions of the rangefinders, in degrees to the left of the car's axis. Denser ahead, where the track is far.
static const double RAY_DEGREES[] = {-90, -60, -40, -25, -15, -10, -6, -3, -1, 0, 1, 3, 6, 10, 15, 25, 40, 60, 90};
enum { RAYS = sizeof RAY_DEGREES / sizeof *RAY_DEGREES };

class Edges {
  public:
    static constexpr double RANGE = 200; // maximum of a rangefinder, metres
    static constexpr double STEP = 2;    // maximum distance between two points of an edge, metres

    // Compute the points along the whole track.
    void measure(tTrack *track) {
        length_ = 0;
        tTrackSeg *seg = track->seg->next; // track->seg is the last one
        do {
            int parts = (int)ceil(seg->length / STEP);
            for (int i = 0; i < parts; i++) {
                tTrkLocPos at;
                memset(&at, 0, sizeof at);
                at.seg = seg, at.toStart = (seg->type == TR_STR ? seg->length : seg->arc) * i / parts;
                Point point;
                at.toRight = 0;
                RtTrackLocal2Global(&at, &point.x[0], &point.y[0], TR_TORIGHT);
                at.toRight = seg->width;
                RtTrackLocal2Global(&at, &point.x[1], &point.y[1], TR_TORIGHT);
                point.along = seg->lgfromstart + seg->length * i / parts;
                points_.push_back(point);
            }
            length_ += seg->length;
            seg = seg->next;
        } while (seg != track->seg->next);
    }

    double length() const { return length_; }

    // Distance of the car from the start line, along the middle of the track.
    double along(const tCarElt *car) const {
        const tTrkLocPos &at = car->_trkPos;
        return at.seg->lgfromstart + at.toStart * (at.seg->type == TR_STR ? 1 : at.seg->radius);
    }

    // Direction of the track relative to the car, positive if it points to the left.
    double angle(tCarElt *car) const {
        double result = RtTrackSideTgAngleL(&car->_trkPos) - car->_yaw;
        NORM_PI_PI(result);
        return result;
    }

    // Distance of the nearest edge in each direction, in units of RANGE.
    void measure(const tCarElt *car, float *to) const {
        size_t count = points_.size(), here = index(along(car));
        size_t behind = 15, ahead = (size_t)(RANGE / STEP * 2) < count - behind ? (size_t)(RANGE / STEP * 2) : count - behind - 1;
        for (int ray = 0; ray < RAYS; ray++) {
            double heading = car->_yaw + RAY_DEGREES[ray] * M_PI / 180, dx = cos(heading), dy = sin(heading), found = RANGE;
            for (int side = 0; side < 2; side++)
                for (size_t i = 0; i < behind + ahead; i++) {
                    const Point &a = points_[(here + count - behind + i) % count], &b = points_[(here + count - behind + i + 1) % count];
                    double ax = a.x[side] - car->_pos_X, ay = a.y[side] - car->_pos_Y;
                    double ex = b.x[side] - a.x[side], ey = b.y[side] - a.y[side], cross = dx * ey - dy * ex;
                    if (fabs(cross) < 1e-9) continue;
                    double far = (ax * ey - ay * ex) / cross, part = (ax * dy - ay * dx) / cross;
                    if (part >= 0 && part <= 1 && far >= 0 && far < found) found = far;
                }
            to[ray] = (float)(found / RANGE);
        }
    }

    void write(FILE *file) const {
        fputs("along,right_x,right_y,left_x,left_y\n", file);
        for (const Point &p : points_) fprintf(file, "%.2f,%.3f,%.3f,%.3f,%.3f\n", p.along, p.x[0], p.y[0], p.x[1], p.y[1]);
    }

  private:
    struct Point { tdble x[2], y[2]; double along; }; // right, left

    size_t index(double along) const {
        size_t low = 0, high = points_.size();
        while (high - low > 1) {
            size_t middle = (low + high) / 2;
            if (points_[middle].along <= along) low = middle; else high = middle;
        }
        return low;
    }

    std::vector<Point> points_;
    double length_ = 0;
};

#endif
