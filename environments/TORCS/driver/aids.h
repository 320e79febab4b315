// Driver aids: automatic gears, traction control, anti-lock brakes. TORCS' own robots have the same aids.
#ifndef RELAAX_AIDS_H
#define RELAAX_AIDS_H

#include <algorithm>

#include <car.h>

// Speed of the car in a gear with its engine at the red line, in m/s.
inline double top_speed(const tCarElt *car, int gear) {
    return car->_enginerpmRedLine / car->_gearRatio[gear + car->_gearOffset] * car->_wheelRadius(REAR_RGT);
}

inline int gear(const tCarElt *car) {
    const double UP = 0.9, MARGIN = 4; // share of the top speed; m/s of hysteresis between two gears
    int now = car->_gear;
    if (now < 1) return 1;
    if (now + 1 + car->_gearOffset < car->_gearNb && car->_speed_x > UP * top_speed(car, now)) return now + 1;
    if (now > 1 && car->_speed_x < UP * top_speed(car, now - 1) - MARGIN) return now - 1;
    return now;
}

inline double rim_speed(const tCarElt *car, int wheel) { return car->_wheelSpinVel(wheel) * car->_wheelRadius(wheel); }

// Reduce the accelerator if a wheel is faster than the road by more than 2 m/s, to 0 at 7 m/s.
inline double without_spin(const tCarElt *car, double accelerator) {
    double slip = 0;
    for (int i = 0; i < 4; i++) slip = std::max(slip, rim_speed(car, i) - car->_speed_x);
    return accelerator * std::min(1.0, std::max(0.0, (7 - slip) / 5));
}

// Reduce the brake if the wheels are slower than the road by more than 2 m/s, to 0 at 5 m/s.
inline double without_locking(const tCarElt *car, double brake) {
    double mean = 0;
    for (int i = 0; i < 4; i++) mean += rim_speed(car, i) / 4;
    return car->_speed_x < 3 ? brake : brake * std::min(1.0, std::max(0.0, (5 - (car->_speed_x - mean)) / 3));
}

#endif
