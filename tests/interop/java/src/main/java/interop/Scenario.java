package interop;

/** One thing the client does; throws what went wrong. */
@FunctionalInterface
interface Scenario {
    void run(Bench bench);
}
