package relaax.rlx;

/**
 * Why a call did not do what it should. What is wrong with arguments is an IllegalArgumentException: nothing was sent
 * then, and the connection stands.
 */
public final class RlxException extends Exception {
    private static final long serialVersionUID = 1;

    /** What it means to the caller. */
    public enum Meaning {
        /** The connection is lost, and with it the episodes: reset the environments and call init, which connects again. */
        INTERRUPTED,
        /** Training is over. */
        FINISHED,
        /** There is nothing to try again, or it was tried for long enough. */
        FAILED
    }

    /** What it means to the caller. */
    public final Meaning meaning;
    /** That of section 9 of the page, or 0. */
    public final long code;
    /** With FINISHED: the steps of training. */
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
