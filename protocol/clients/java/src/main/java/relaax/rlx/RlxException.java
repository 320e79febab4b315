package relaax.rlx;

/**
 * The error of a call. Invalid arguments throw an IllegalArgumentException: nothing was sent, and the connection remains
 * open.
 */
public final class RlxException extends Exception {
    private static final long serialVersionUID = 1;

    /** What the error means for the caller. */
    public enum Meaning {
        /** The connection and its episodes are lost. Reset the environments and call init, which reconnects. */
        INTERRUPTED,
        /** Training has finished. */
        FINISHED,
        /** A retry is useless, or the retries took too long. */
        FAILED
    }

    /** What the error means for the caller. */
    public final Meaning meaning;
    /** An error code of RLX.md, section 9, or 0. */
    public final long code;
    /** The global step, with FINISHED. */
    public final long globalStep;
    final double retryAfter;

    RlxException(Meaning meaning, long code, String sentence, long globalStep, double retryAfter) {
        super(sentence);
        this.meaning = meaning;
        this.code = code;
        this.globalStep = globalStep;
        this.retryAfter = retryAfter;
    }
}
