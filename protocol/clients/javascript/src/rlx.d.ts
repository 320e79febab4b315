/** A client of RLX, version 1: see README.md and protocol/RLX.md. */

export type Dtype =
  | "bool" | "uint8" | "uint16" | "uint32" | "uint64" | "int8" | "int16" | "int32" | "int64"
  | "float16" | "float32" | "float64";

/** A space; make one with the functions below. */
export interface Space {
  readonly kind: number;
}

export interface Bounds {
  /** A number for all elements, or one for each; left out: no bound. */
  low?: number | readonly number[];
  high?: number | readonly number[];
}

/** The names of element types, in the order of their numbers on the wire, which begin at 1. */
export const DTYPES: readonly Dtype[];
export const VERSION: string;
export function box(dtype: Dtype, shape?: readonly number[], bounds?: Bounds): Space;
export function discrete(n: number | bigint, start?: number | bigint): Space;
export function multiDiscrete(nvec: readonly (number | bigint)[]): Space;
export function multiBinary(shape: readonly number[]): Space;
export function tuple(spaces: readonly Space[]): Space;
export function dict(spaces: Record<string, Space> | Map<string, Space>): Space;
/** The number that a float16's bits stand for. */
export function half(bits: number): number;

/** The numbers of all environments, the first one's first; an ArrayBuffer holds their little-endian bytes. */
export type LeafIn = ArrayLike<number> | ArrayLike<bigint> | ArrayLike<boolean> | ArrayBuffer;
/** Of discrete and multiDiscrete an Array of numbers (bigints beyond 2^53); of float16 a Float32Array; else its typed array. */
export type LeafOut =
  | number[] | Uint8Array | Uint16Array | Uint32Array | Int8Array | Int16Array | Int32Array
  | BigInt64Array | BigUint64Array | Float32Array | Float64Array;
/** One for each elementary space; those of a dict in the order of its keys. */
export type Observation = readonly LeafIn[];
export type Actions = LeafOut[];
export type Mask = ArrayLike<boolean | number>;
export type Autoreset = "disabled" | "same_step" | "next_step";

/** A whole episode by the client's own account. */
export interface Episode {
  environment: number;
  episodeReturn: number;
  length: number;
}

export interface Options {
  /** The spaces of one environment. */
  observation: Space;
  action: Space;
  /** N, 1 if left out. */
  environments?: number;
  /** How episodes follow each other, for all or for each; "disabled" if left out. */
  autoreset?: Autoreset | readonly Autoreset[];
  /** "train" if left out; with "exploit" nothing is learned. */
  mode?: "train" | "exploit";
  token?: string;
  /** Names, for logs. */
  environment?: string;
  host?: string;
  /** That of an earlier client whose identity this one goes on with. */
  sessionId?: string;
  frameSkip?: number;
  reportsEpisodes?: boolean;
  /** How long to go on trying after a failure; 300 if left out, Infinity for ever. */
  retrySeconds?: number;
  /** Called before each wait: why the connection is lost, and in how many seconds the next is tried. A console.warn if left out. */
  onRetry?: (reason: Interrupted, seconds: number) => void;
  /** Node and HOST:PORT alone: TLS, with the authorities of Node, or options of node:tls, such as { ca }. */
  tls?: boolean | object;
}

export class RlxError extends Error {
  /** That of section 9 of RLX.md, or 0. */
  readonly code: number;
}
export class Interrupted extends RlxError {
  readonly retryAfter: number;
}
export class Failed extends RlxError {}
export class Finished extends RlxError {
  readonly globalStep: number;
}

/** The way of N environments to their agent. One call at a time; each rejects with Interrupted, Failed, Finished or RangeError. */
export class Client {
  /** ws://HOST:PORT/, wss://HOST:PORT/, in Node HOST:PORT; of several the next one after each failure. Connects to nothing yet. */
  constructor(addresses: string | readonly string[], options: Options);
  readonly sessionId: string;
  readonly algorithm: string;
  connect(): Promise<void>;
  /** `partial`: where an episode was under way already. */
  init(observation: Observation, more?: { partial?: Mask }): Promise<Actions>;
  /** `finalObservation`: where an episode ended, with same_step; needed where one was truncated. */
  step(
    reward: ArrayLike<number>,
    observation: Observation,
    more?: { terminated?: Mask; truncated?: Mask; finalObservation?: Observation; episodes?: readonly Episode[] },
  ): Promise<Actions>;
  /** The returns. `finalObservation` is needed where an episode is truncated. */
  reset(
    reward: ArrayLike<number>,
    more?: { truncated?: Mask; finalObservation?: Observation; episodes?: readonly Episode[] },
  ): Promise<number[]>;
  /** Whether it will be sent, with the next message. */
  metric(name: string, value: number): boolean;
  alive(): Promise<void>;
  close(): Promise<void>;
}
