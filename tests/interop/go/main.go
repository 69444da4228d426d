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
	names := make(chan string)
	var workers sync.WaitGroup
	var printing sync.Mutex
	for range atOnce {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for name := range names {
				detail := run(name)
				line, _ := json.Marshal(result{name, detail == "", detail})
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

// run gives what went wrong, or nothing. A panic of the client in its own goroutine ends the program, and shows in its output.
func run(name string) (detail string) {
	defer func() {
		if found := recover(); found != nil {
			detail = fmt.Sprintf("%v", found)
			if _, failed := found.(failure); !failed {
				detail += "\n" + string(debug.Stack())
			}
		}
	}()
	scenario, known := scenarios[name]
	if !known {
		return "this scenario is not written"
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	text := os.Getenv("PARTIBUS_CONNECTION_STRING")
	if name == "wrong-key" {
		text = os.Getenv("PARTIBUS_CONNECTION_STRING_WRONG_KEY")
	}
	b := connect(ctx, text, os.Getenv("PARTIBUS_QUEUE_PREFIX")+name)
	defer b.close()
	scenario(b)
	return ""
}
