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
        runAll(Scenarios.ALL);
    }

    /** Runs what PARTIBUS_SCENARIOS names, and ends the program. */
    static void runAll(Map<String, Scenario> scenarios) {
        ExecutorService workers = Executors.newFixedThreadPool(AT_ONCE);
        Map<String, Future<String>> running = new LinkedHashMap<>();
        for (String name : System.getenv("PARTIBUS_SCENARIOS").split(",")) {
            running.put(name, workers.submit(() -> run(name, scenarios.get(name))));
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(ALL_WITHIN_S);
        running.forEach((name, scenario) -> report(name, scenario, deadline));
        System.exit(0);
    }

    /** Runs one scenario, or provokes one refusal and gives the client's account of it. */
    private static String run(String name, Scenario scenario) {
        boolean isRefusal = Refusals.has(name);
        if (scenario == null && !isRefusal) {
            throw new AssertionError("this scenario is not written");
        }
        String wrongKey = name.equals("wrong-key") ? "PARTIBUS_CONNECTION_STRING_WRONG_KEY" : "PARTIBUS_CONNECTION_STRING";
        String from = isRefusal ? Refusals.CONNECTION_STRINGS.getOrDefault(name, wrongKey) : wrongKey;
        try (Bench bench = new Bench(System.getenv(from), System.getenv("PARTIBUS_QUEUE_PREFIX") + name)) {
            if (isRefusal) {
                return Refusals.provoke(name, bench);
            }
            scenario.run(bench);
            return "";
        }
    }

    private static void report(String name, Future<String> scenario, long deadline) {
        String account = "";
        String failure = "";
        try {
            account = scenario.get(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
        } catch (ExecutionException failed) {
            StringBuilder text = new StringBuilder(failed.getCause().toString());
            for (StackTraceElement element : failed.getCause().getStackTrace()) {
                if (element.getClassName().startsWith("interop.")) {
                    text.append("\n  at ").append(element);
                }
            }
            failure = text.toString();
        } catch (TimeoutException | InterruptedException late) {
            failure = "not done within " + ALL_WITHIN_S + " s";
        }
        String detail = failure.isEmpty() ? account : failure;
        System.out.println("{\"scenario\":" + quoted(name) + ",\"ok\":" + failure.isEmpty() + ",\"detail\":" + quoted(detail) + "}");
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
