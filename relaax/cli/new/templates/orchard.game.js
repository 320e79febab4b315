// The game orchard: catch apples, and let stones fall. Replace World by your own game. Do not change page.js, which needs
// the four names that are exported here. Only `reward` in this file is about learning.
// An observation is a list of the numbers of its box; an action is a number, or a list of them if its space has several.

import { box, discrete } from "./rlx/rlx.js";

export const OBSERVATION = box("float32", [6]);
export const ACTION = discrete(3); // left, stay, right

const APPLES = 10; // per episode, and so the highest return
const REACH = 0.15;
const FALL = 0.05;

export class World {
  /** Begin an episode. */
  restart() {
    [this.basket, this.speed, this.apples] = [0, 0, 0];
    this.#drop();
    return this.#observe();
  }

  /** Take a step: return the observation, the reward, and whether the rules (terminated) or time (truncated) end the episode. */
  do(action) {
    this.speed = 0.6 * this.speed + 0.06 * (action - 1);
    this.basket = Math.max(-1, Math.min(1, this.basket + this.speed));
    this.x += this.drift;
    if (Math.abs(this.x) > 1) [this.x, this.drift] = [Math.sign(this.x), -this.drift];
    this.y -= FALL;
    let reward = 0;
    if (this.y <= 0) {
      const caught = Math.abs(this.x - this.basket) < REACH;
      reward = caught ? (this.apple ? 1 : -1) : 0;
      this.apples += this.apple ? 1 : 0;
      this.#drop();
    }
    return { observation: this.#observe(), reward, terminated: false, truncated: this.apples >= APPLES };
  }

  #drop() {
    [this.x, this.y, this.drift] = [2 * Math.random() - 1, 1, 0.06 * (Math.random() - 0.5)];
    this.apple = Math.random() < 0.7;
  }

  #observe() {
    return [this.basket, 5 * this.speed, this.x - this.basket, this.y, 20 * this.drift, this.apple ? 1 : -1];
  }
}

/** Draw one game into a square of a canvas. */
export function draw(context, world, left, top, side) {
  const [across, down] = [(x) => left + ((x + 1.2) / 2.4) * side, (y) => top + (0.9 - 0.8 * y) * side];
  context.fillStyle = "#e8f1e4";
  context.fillRect(left + 1, top + 1, side - 2, side - 2);
  context.fillStyle = world.apple ? "#c0392b" : "#5d6d7e";
  context.beginPath();
  context.arc(across(world.x), down(world.y), side / 24, 0, 2 * Math.PI);
  context.fill();
  context.fillStyle = "#8e5a2b";
  context.fillRect(across(world.basket - REACH), down(0), (2 * REACH * side) / 2.4, side / 20);
}
