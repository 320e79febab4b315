/** A policy that acts without a server: see README.md. */

import type { Dtype } from "./rlx.js";

/** The file or an observation cannot be used. The message gives the reason. */
export class PolicyError extends Error {}

/** A leaf of a space, without the axis for environments. */
export interface PolicyLeaf {
  readonly dtype: Dtype;
  readonly count: number;
}

/** The elements of a leaf, in C order. */
export type PolicyLeafIn = ArrayLike<number> | ArrayLike<bigint> | ArrayLike<boolean>;
/** Choices: an Array of numbers. Bits: an Int8Array. Real numbers: a typed array of their dtype. */
export type PolicyLeafOut = number[] | Int8Array | Float32Array | Float64Array;

/** A greedy policy that acts in one environment: load one for each. */
export interface Policy {
  readonly observation: readonly PolicyLeaf[];
  readonly action: readonly PolicyLeaf[];
  /** The last outputs of the network by name, such as `policy`. The next `act` overwrites them. */
  readonly outputs: Readonly<Record<string, Float32Array>>;
  /** The leaves of the action. Throws PolicyError if the observation is invalid; the policy is then as before. */
  act(observation: readonly PolicyLeafIn[]): PolicyLeafOut[];
  /** The next observation begins an episode. The first one does without a call. */
  reset(): void;
}

/** The policy in the contents of a file. Throws PolicyError. */
export function loadPolicy(contents: ArrayBuffer | Uint8Array): Policy;
