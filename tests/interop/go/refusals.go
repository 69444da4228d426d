package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	azlog "github.com/Azure/azure-sdk-for-go/sdk/azcore/log"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
)

// refusals provoke those of error_table.py. Each calls `refused` once for what the broker refuses.
var refusals = map[string]func(*bench) error{
	"send-to-no-entity":          sendX,
	"receive-from-no-entity":     receiveX,
	"wrong-key":                  sendX,
	"expired-token":              sendX,
	"missing-claim":              sendX,
	"message-too-large":          func(b *bench) error { return b.refuseSend(&azservicebus.Message{Body: make([]byte, 2_000_000)}) },
	"send-to-disabled":           sendX,
	"receive-from-disabled":      receiveX,
	"send-disabled":              sendX,
	"receive-disabled":           receiveX,
	"receive-from-topic":         receiveX,
	"disabled-beside-sender":     func(b *bench) error { return sendAround(b, "SendDisabled") },
	"disabled-beside-receiver":   func(b *bench) error { return receiveAround(b, "ReceiveDisabled") },
	"deleted-beside-sender":      func(b *bench) error { return sendAround(b, "delete") },
	"deleted-beside-receiver":    func(b *bench) error { return receiveAround(b, "delete") },
	"quota-exceeded":             func(b *bench) error { return b.refuseSend(&azservicebus.Message{Body: make([]byte, 500_000)}) },
	"session-state-too-large":    sessionStateTooLarge,
	"too-many-session-states":    tooManySessionStates,
	"too-many-links":             tooManyLinks,
	"message-lock-lost":          messageLockLost,
	"session-lock-lost":          sessionLockLost,
	"session-held":               sessionHeld,
	"no-session-free":            noSessionFree,
	"deferred-message-unknown":   deferredMessageUnknown,
	"scheduled-message-unknown":  scheduledMessageUnknown,
	"batch-with-two-keys":        batchWithTwoKeys,
	"message-without-session":    sendX,
	"receiver-without-session":   receiveX,
	"receiver-beside-forwarding": receiveX,
	"session-of-none":            func(b *bench) error { return acceptS(b, "s") },
	"session-id-too-long":        func(b *bench) error { return acceptS(b, strings.Repeat("s", 129)) },
	"send-to-dead-letters":       sendToDeadLetters,
	"dead-letter-a-dead-letter":  deadLetterADeadLetter,
	"partition-unavailable": func(b *bench) error {
		return b.refuseSend(&azservicebus.Message{Body: []byte("x"), PartitionKey: to("k")})
	},
}

// ofRefusal has the connection strings of those that need one of their own.
var ofRefusal = map[string]string{
	"wrong-key":     "PARTIBUS_CONNECTION_STRING_WRONG_KEY",
	"expired-token": "PARTIBUS_CONNECTION_STRING_EXPIRED",
	"missing-claim": "PARTIBUS_CONNECTION_STRING_LISTEN",
}

// retries notes what the client logs about trying again. The log does not say which client tries, so only one refused operation runs
// at a time.
var retries struct {
	sync.Mutex
	seen *bool
}
var oneAtATime sync.Mutex

func listenForRetries() {
	azlog.SetListener(func(_ azlog.Event, line string) {
		retries.Lock()
		defer retries.Unlock()
		if strings.Contains(line, "returned non-retryable error") {
			retries.seen = to(false)
		} else if strings.Contains(line, "returned retryable error") {
			retries.seen = to(true)
		}
	})
}

type refusal struct {
	err     error
	retried string
}

func (r refusal) Error() string { return r.err.Error() }

// refused carries out an operation that the broker refuses, and adds whether the client would try again.
func refused(operation func() error) error {
	oneAtATime.Lock()
	defer oneAtATime.Unlock()
	retries.Lock()
	retries.seen = nil
	retries.Unlock()
	err := operation()
	if err == nil {
		return nil
	}
	retries.Lock()
	defer retries.Unlock()
	retried := "null"
	if retries.seen != nil {
		retried = strconv.FormatBool(*retries.seen)
	}
	return refusal{err, retried}
}

// provoke gives the refusal as "reason|retried|text".
func provoke(b *bench, operation func(*bench) error) string {
	var found refusal
	if err := operation(b); !errors.As(err, &found) {
		fail("not refused, but: %v", err)
	}
	return fmt.Sprintf("%s|%s|%v", reasonOf(found.err), found.retried, found.err)
}

func reasonOf(err error) string {
	var coded *azservicebus.Error
	var condition *amqp.Error
	switch {
	case errors.Is(err, azservicebus.ErrMessageTooLarge):
		return "ErrMessageTooLarge"
	case errors.As(err, &coded):
		return string(coded.Code)
	case errors.As(err, &condition):
		return string(condition.Condition)
	}
	return fmt.Sprintf("%T", err)
}

// stage has the test change the queue.
func (b *bench) stage(change string) {
	answer := must(http.Get(os.Getenv("PARTIBUS_STAGE_URL") + "/" + change + "/" + b.queue))
	check(answer.Body.Close())
	equal(answer.StatusCode, 200, "stage")
}

func (b *bench) refuseSend(message *azservicebus.Message) error {
	sender := must(b.client.NewSender(b.queue, nil))
	return refused(func() error { return sender.SendMessage(b.ctx, message, nil) })
}

func x() *azservicebus.Message { return &azservicebus.Message{Body: []byte("x")} }

func sendX(b *bench) error { return b.refuseSend(x()) }

func receiveX(b *bench) error {
	receiver := b.receiver()
	return refused(func() error {
		ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
		defer cancel()
		_, err := receiver.ReceiveMessages(ctx, 1, nil)
		return err
	})
}

func sendAround(b *bench, change string) error {
	sender := must(b.client.NewSender(b.queue, nil))
	check(sender.SendMessage(b.ctx, x(), nil))
	b.stage(change)
	return refused(func() error { return sender.SendMessage(b.ctx, x(), nil) })
}

// receiveAround receives again once the link has ended: the client attaches again.
func receiveAround(b *bench, change string) error {
	receiver := b.receiver()
	waiting := make(chan error)
	go func() {
		_, err := receiver.ReceiveMessages(b.ctx, 1, nil)
		waiting <- err
	}()
	time.Sleep(300 * time.Millisecond)
	b.stage(change)
	err := <-waiting
	if err == nil {
		fail("received")
	}
	return refusal{err, "null"}
}

func acceptS(b *bench, id string) error {
	return refused(func() error {
		_, err := b.client.AcceptSessionForQueue(b.ctx, b.queue, id, nil)
		return err
	})
}

func sessionStateTooLarge(b *bench) error {
	receiver := must(b.client.AcceptSessionForQueue(b.ctx, b.queue, "s", nil))
	return refused(func() error { return receiver.SetSessionState(b.ctx, make([]byte, 1025), nil) })
}

func tooManySessionStates(b *bench) error {
	first := must(b.client.AcceptSessionForQueue(b.ctx, b.queue, "one", nil))
	check(first.SetSessionState(b.ctx, []byte("x"), nil))
	second := must(b.client.AcceptSessionForQueue(b.ctx, b.queue, "two", nil))
	return refused(func() error { return second.SetSessionState(b.ctx, []byte("x"), nil) })
}

func tooManyLinks(b *bench) error {
	for range 30 {
		sender := must(b.client.NewSender(b.queue, nil))
		err := refused(func() error {
			_, err := sender.NewMessageBatch(b.ctx, nil)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func messageLockLost(b *bench) error {
	b.send(x())
	receiver := b.receiver()
	message := b.one(receiver)
	b.one(b.receiver()) // once the lock is lost
	return refused(func() error { return receiver.CompleteMessage(b.ctx, message, nil) })
}

func sessionLockLost(b *bench) error {
	receiver := must(b.client.AcceptSessionForQueue(b.ctx, b.queue, "s", nil))
	time.Sleep(time.Duration(must(strconv.Atoi(os.Getenv("PARTIBUS_LOCK_MS"))))*time.Millisecond + 500*time.Millisecond)
	return refused(func() error { return receiver.SetSessionState(b.ctx, []byte("x"), nil) })
}

func sessionHeld(b *bench) error {
	must(b.client.AcceptSessionForQueue(b.ctx, b.queue, "s", nil))
	return acceptS(b, "s")
}

func noSessionFree(b *bench) error {
	return refused(func() error {
		_, err := b.client.AcceptNextSessionForQueue(b.ctx, b.queue, nil)
		return err
	})
}

func deferredMessageUnknown(b *bench) error {
	receiver := b.receiver()
	return refused(func() error {
		_, err := receiver.ReceiveDeferredMessages(b.ctx, []int64{12_345}, nil)
		return err
	})
}

func scheduledMessageUnknown(b *bench) error {
	sender := must(b.client.NewSender(b.queue, nil))
	return refused(func() error { return sender.CancelScheduledMessages(b.ctx, []int64{12_345}, nil) })
}

func batchWithTwoKeys(b *bench) error {
	sender := must(b.client.NewSender(b.queue, nil))
	batch := must(sender.NewMessageBatch(b.ctx, nil))
	for _, key := range []string{"one", "two"} {
		check(batch.AddMessage(&azservicebus.Message{Body: []byte("x"), PartitionKey: to(key)}, nil))
	}
	return refused(func() error { return sender.SendMessageBatch(b.ctx, batch, nil) })
}

func sendToDeadLetters(b *bench) error {
	sender := must(b.client.NewSender(b.queue+"/$deadletterqueue", nil))
	return refused(func() error { return sender.SendMessage(b.ctx, x(), nil) })
}

func deadLetterADeadLetter(b *bench) error {
	b.send(x())
	receiver := b.receiver()
	check(receiver.DeadLetterMessage(b.ctx, b.one(receiver), nil))
	letters := b.deadLetters()
	message := b.one(letters)
	return refused(func() error { return letters.DeadLetterMessage(b.ctx, message, nil) })
}
