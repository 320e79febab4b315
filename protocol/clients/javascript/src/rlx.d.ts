/** A client of RLX, version 1: see README.md and protocol/RLX.md. */

export type Dtype =
  | "bool" | "uint8" | "uint16" | "uint32" | "uint64" | "int8" | "int16" | "int32" | "int64"
  | "float16" | "float32" | "float64";

/** A space; make one with the functions below. */
export interface Space {
  readonly kind: number;
}

export interface Bounds {
  /** A number for all elements, or one for each. The default is no bound. */
  low?: number | readonly number[];
  high?: number | readonly number[];
}

/** The names of element types, in the order of their numbers on the wire, from 1. */
export const DTYPES: readonly Dtype[];
export const VERSION: string;
export function box(dtype: Dtype, shape?: readonly number[], bounds?: Bounds): Space;
export function discrete(n: number | bigint, start?: number | bigint): Space;
export function multiDiscrete(nvec: readonly (number | bigint)[]): Space;
export function multiBinary(shape: readonly number[]): Space;
export function tuple(spaces: readonly Space[]): Space;
export function dict(spaces: Record<string, Space> | Map<string, Space>): Space;
/** The number that the bits of a float16 represent. */
export function half(bits: number): number;

/** The numbers of all environments, in their order. An ArrayBuffer holds little-endian bytes. */
export type LeafIn = ArrayLike<number> | ArrayLike<bigint> | ArrayLike<boolean> | ArrayBuffer;
/** discrete and multiDiscrete: an Array of numbers (bigints beyond 2^53). float16: a Float32Array. Other dtypes: their typed array. */
export type LeafOut =
  | number[] | Uint8Array | Uint16Array | Uint32Array | Int8Array | Int16Array | Int32Array
  | BigInt64Array | BigUint64Array | Float32Array | Float64Array;
/** One leaf for each elementary space. Leaves of a dict are in the order of its keys. */
export type Observation = readonly LeafIn[];
export type Actions = LeafOut[];
/** Actions that the client chose, in the form of an observation. */
export type OwnActions = readonly LeafIn[];
export type Mask = ArrayLike<boolean | number>;
export type Autoreset = "disabled" | "same_step" | "next_step";

/** A whole episode, as the client counts it. */
export interface Episode {
  environment: number;
  episodeReturn: number;
  length: number;
}

export interface Options {
  /** The spaces of one environment. */
  observation: Space;
  action: Space;
  /** The number of environments, N. The default is 1. */
  environments?: number;
  /** The autoreset mode, one for all environments or N. The default is "disabled". */
  autoreset?: Autoreset | readonly Autoreset[];
  /** The default is "train". With "exploit" the agent does not learn. */
  mode?: "train" | "exploit";
  token?: string;
  /** Names, for logs. */
  environment?: string;
  host?: string;
  /** The session id of an earlier client, whose identity this one continues. */
  sessionId?: string;
  frameSkip?: number;
  reportsEpisodes?: boolean;
  /** Whether calls may mark environments as idle. The server and its algorithm must support it. */
  outOfStep?: boolean;
  /** Whether calls may have actions that the client chose. The server and its algorithm must support it. */
  chosenActions?: boolean;
  /** Whether the server sets parameters of the environments. The server must support it. */
  environmentParameters?: boolean;
  /** How long to retry after a failure, in seconds. The default is 300; Infinity retries without end. */
  retrySeconds?: number;
  /** Called before each wait with the reason and the seconds. The default calls console.warn. */
  onRetry?: (reason: Interrupted, seconds: number) => void;
  /** Only for Node and HOST:PORT. true: TLS with Node's certificate authorities. Or options of node:tls, such as { ca }. */
  tls?: boolean | object;
}

export class RlxError extends Error {
  /** An error code of RLX.md, section 9, or 0. */
  readonly code: number;
}
export class Interrupted extends RlxError {
  readonly retryAfter: number;
}
export class Failed extends RlxError {}
export class Finished extends RlxError {
  readonly globalStep: number;
}

/** A connection of N environments to their agent. Make one call at a time. A call rejects with Interrupted, Failed, Finished or RangeError. */
export class Client {
  /** ws://HOST:PORT/, wss://HOST:PORT/, in Node HOST:PORT; of several the next one after each failure. Connects to nothing yet. */
  constructor(addresses: string | readonly string[], options: Options);
  readonly sessionId: string;
  readonly algorithm: string;
  connect(): Promise<void>;
  /**
   * Resolves to the parameters of each environment's next episode: a value for each environment, by name. Connects if
   * there is no connection. Read them before an environment begins an episode. Needs environmentParameters.
   */
  parameters(): Promise<Record<string, number[]>>;
  /** `partial`: true where an episode continues. `idle`: true where an environment is away and its observation void. */
  init(observation: Observation, more?: { partial?: Mask; idle?: Mask }): Promise<Actions>;
  /**
   * `finalObservation`: rows of ended episodes, with same_step. Required if an episode was truncated. `idle`: the
   * environments that want no action, with outOfStep. `chosen`, `action`: which environments took another action than
   * the agent's, and these actions, with chosenActions; other rows of `action` are ignored.
   */
  step(
    reward: ArrayLike<number>,
    observation: Observation,
    more?: {
      terminated?: Mask;
      truncated?: Mask;
      idle?: Mask;
      finalObservation?: Observation;
      episodes?: readonly Episode[];
      chosen?: Mask;
      action?: OwnActions;
    },
  ): Promise<Actions>;
  /** Resolves to the returns. `finalObservation` is required if an episode is truncated. `chosen`, `action`: as in step. */
  reset(
    reward: ArrayLike<number>,
    more?: {
      truncated?: Mask;
      finalObservation?: Observation;
      episodes?: readonly Episode[];
      chosen?: Mask;
      action?: OwnActions;
    },
  ): Promise<number[]>;
  /** Returns whether the scalar will be sent with the next message. */
  metric(name: string, value: number): boolean;
  alive(): Promise<void>;
  close(): Promise<void>;
}
