package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// failure is the panic of an expectation that does not hold; it ends a scenario.
type failure string

func fail(format string, args ...any) {
	panic(failure(fmt.Sprintf(format, args...)))
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func equal[T comparable](seen, expected T, what string) {
	if seen != expected {
		fail("%s: %v, expected %v", what, seen, expected)
	}
}

func same(seen, expected []string, what string) {
	slices.Sort(seen)
	slices.Sort(expected)
	if !slices.Equal(seen, expected) {
		fail("%s: %v, expected %v", what, seen, expected)
	}
}

func to[T any](value T) *T { return &value }

// bench is what a scenario works with: a client and a queue of its own.
type bench struct {
	ctx    context.Context
	client *azservicebus.Client
	queue  string
}

func connect(ctx context.Context, text, queue string) *bench {
	// One attempt: a refusal is to be seen, not repeated.
	options := &azservicebus.ClientOptions{RetryOptions: azservicebus.RetryOptions{MaxRetries: -1}}
	return &bench{ctx, must(azservicebus.NewClientFromConnectionString(text, options)), queue}
}

func (b *bench) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = b.client.Close(ctx)
}

func (b *bench) send(messages ...*azservicebus.Message) {
	sender := must(b.client.NewSender(b.queue, nil))
	for _, message := range messages {
		check(sender.SendMessage(b.ctx, message, nil))
	}
	check(sender.Close(b.ctx))
}

func (b *bench) receiver() *azservicebus.Receiver {
	return must(b.client.NewReceiverForQueue(b.queue, nil))
}

func (b *bench) deletingReceiver() *azservicebus.Receiver {
	return must(b.client.NewReceiverForQueue(b.queue, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}))
}

func (b *bench) deadLetters() *azservicebus.Receiver {
	return must(b.client.NewReceiverForQueue(b.queue, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}))
}

// exactly receives until there are count messages.
func (b *bench) exactly(receiver *azservicebus.Receiver, count int) []*azservicebus.ReceivedMessage {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	var found []*azservicebus.ReceivedMessage
	for len(found) < count {
		more, err := receiver.ReceiveMessages(ctx, count-len(found), nil)
		if err != nil {
			fail("received %d of %d messages: %v", len(found), count, err)
		}
		found = append(found, more...)
	}
	equal(len(found), count, "messages")
	return found
}

func (b *bench) one(receiver *azservicebus.Receiver) *azservicebus.ReceivedMessage {
	return b.exactly(receiver, 1)[0]
}

// empty expects that nothing comes within half a second.
func (b *bench) empty(receiver *azservicebus.Receiver) {
	ctx, cancel := context.WithTimeout(b.ctx, 500*time.Millisecond)
	defer cancel()
	found, err := receiver.ReceiveMessages(ctx, 10, nil)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		fail("%v", err)
	}
	same(ids(found), nil, "left over")
}

func numbered(count int) []*azservicebus.Message {
	var messages []*azservicebus.Message
	for number := range count {
		messages = append(messages, text(fmt.Sprintf("message %d", number), fmt.Sprintf("id-%d", number)))
	}
	return messages
}

func text(body, id string) *azservicebus.Message {
	return &azservicebus.Message{Body: []byte(body), MessageID: &id}
}

func ids(messages []*azservicebus.ReceivedMessage) []string {
	var found []string
	for _, message := range messages {
		found = append(found, message.MessageID)
	}
	return found
}

func idsUpTo(count int) []string {
	var found []string
	for number := range count {
		found = append(found, fmt.Sprintf("id-%d", number))
	}
	return found
}
