// The official Go client, unchanged, against the running broker.
//
// Runs the scenarios named in PARTIBUS_SCENARIOS, a few at a time, and prints one JSON line for each: {"scenario", "ok", "detail"}.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

const (
	atOnce = 5
	within = 40 * time.Second
)

type result struct {
	Scenario string `json:"scenario"`
	OK       bool   `json:"ok"`
	Detail   string `json:"detail"`
}

func main() {
	listenForRetries()
	names := make(chan string)
	var workers sync.WaitGroup
	var printing sync.Mutex
	for range atOnce {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for name := range names {
				line, _ := json.Marshal(run(name))
				printing.Lock()
				fmt.Println(string(line))
				printing.Unlock()
			}
		}()
	}
	for _, name := range strings.Split(os.Getenv("PARTIBUS_SCENARIOS"), ",") {
		names <- name
	}
	close(names)
	workers.Wait()
}

// run runs one scenario, or provokes one refusal. A panic of the client in its own goroutine ends the program, and shows in its output.
func run(name string) (out result) {
	defer func() {
		if found := recover(); found != nil {
			out = result{name, false, fmt.Sprintf("%v", found)}
			if _, failed := found.(failure); !failed {
				out.Detail += "\n" + string(debug.Stack())
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	from := "PARTIBUS_CONNECTION_STRING"
	if name == "wrong-key" {
		from = "PARTIBUS_CONNECTION_STRING_WRONG_KEY"
	}
	operation, isRefusal := refusals[name]
	isRefusal = isRefusal && os.Getenv("PARTIBUS_STAGE_URL") != ""
	if own, found := ofRefusal[name]; found && isRefusal {
		from = own
	}
	b := connect(ctx, os.Getenv(from), os.Getenv("PARTIBUS_QUEUE_PREFIX")+name)
	defer b.close()
	if isRefusal {
		return result{name, true, provoke(b, operation)}
	}
	scenario, known := scenarios[name]
	if !known {
		return result{name, false, "this scenario is not written"}
	}
	scenario(b)
	return result{name, true, ""}
}
