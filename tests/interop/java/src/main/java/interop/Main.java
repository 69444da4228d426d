package interop;

import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.LinkedHashMap;
import java.util.Map;

/** Runs the scenarios named in PARTIBUS_SCENARIOS, a few at a time, and prints one JSON line for each: {"scenario", "ok", "detail"}. */
public final class Main {
    private static final int AT_ONCE = 5;
    private static final int ALL_WITHIN_S = 120;

    public static void main(String[] arguments) {
        ExecutorService workers = Executors.newFixedThreadPool(AT_ONCE);
        Map<String, Future<?>> running = new LinkedHashMap<>();
        for (String name : System.getenv("PARTIBUS_SCENARIOS").split(",")) {
            running.put(name, workers.submit(() -> run(name)));
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(ALL_WITHIN_S);
        running.forEach((name, scenario) -> report(name, outcome(scenario, deadline)));
        System.exit(0);
    }

    private static void run(String name) {
        Scenario scenario = Scenarios.ALL.get(name);
        if (scenario == null) {
            throw new AssertionError("this scenario is not written");
        }
        String text = System.getenv(name.equals("wrong-key") ? "PARTIBUS_CONNECTION_STRING_WRONG_KEY" : "PARTIBUS_CONNECTION_STRING");
        try (Bench bench = new Bench(text, System.getenv("PARTIBUS_QUEUE_PREFIX") + name)) {
            scenario.run(bench);
        }
    }

    /** What went wrong, or nothing. */
    private static String outcome(Future<?> scenario, long deadline) {
        try {
            scenario.get(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
            return "";
        } catch (ExecutionException failed) {
            StringBuilder text = new StringBuilder(failed.getCause().toString());
            for (StackTraceElement element : failed.getCause().getStackTrace()) {
                if (element.getClassName().startsWith("interop.")) {
                    text.append("\n  at ").append(element);
                }
            }
            return text.toString();
        } catch (TimeoutException | InterruptedException late) {
            return "not done within " + ALL_WITHIN_S + " s";
        }
    }

    private static void report(String name, String detail) {
        System.out.println("{\"scenario\":" + quoted(name) + ",\"ok\":" + detail.isEmpty() + ",\"detail\":" + quoted(detail) + "}");
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            switch (each) {
                case '"', '\\' -> out.append('\\').append(each);
                default -> out.append(each < ' ' ? String.format("\\u%04x", (int) each) : String.valueOf(each));
            }
        }
        return out.append('"').toString();
    }
}
