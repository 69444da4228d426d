package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

var scenarios = map[string]func(*bench){
	"topic-administration":        topicAdministration,
	"subscription-administration": subscriptionAdministration,
	"rule-administration":         ruleAdministration,
	"queue-administration":        queueAdministration,
	"send-one":                    sendOne,
	"send-many":                   sendMany,
	"send-batch":                  sendBatch,
	"receive-and-delete":          receiveAndDelete,
	"complete":                    complete,
	"abandon":                     abandon,
	"abandon-with-properties":     abandonWithProperties,
	"defer-with-properties":       deferWithProperties,
	"dead-letter-with-properties": deadLetterWithProperties,
	"defer-and-fetch":             deferAndFetch,
	"schedule-and-cancel":         scheduleAndCancel,
	"sessions":                    sessions,
	"dead-letter":                 deadLetter,
	"peek-pages":                  peekPages,
	"renew-lock":                  renewLock,
	"max-delivery-count":          maxDeliveryCount,
	"time-to-live":                timeToLive,
	"large-message":               largeMessage,
	"message-too-large":           messageTooLarge,
	"unknown-queue":               unknownQueue,
	"wrong-key":                   wrongKey,
}

func sendOne(b *bench) {
	b.send(&azservicebus.Message{
		Body:                  []byte("one"),
		Subject:               to("greeting"),
		ApplicationProperties: map[string]any{"whole": int64(7), "fraction": 1.5, "yes": true, "text": "t", "when": time.UnixMilli(1_700_000_000_000)},
	})
	receiver := b.receiver()
	message := b.one(receiver)
	equal(string(message.Body), "one", "body")
	equal(*message.Subject, "greeting", "subject")
	equal(message.ApplicationProperties["whole"], any(int64(7)), "a whole number")
	equal(message.ApplicationProperties["fraction"], any(1.5), "a fraction")
	equal(message.ApplicationProperties["text"], any("t"), "text")
	equal(message.ApplicationProperties["when"].(time.Time).UnixMilli(), 1_700_000_000_000, "a time")
	// This client counts the delivery under way.
	equal(message.DeliveryCount, 1, "delivery count")
	equal(message.LockedUntil.After(time.Now()), true, "locked until later")
	equal(*message.EnqueuedSequenceNumber, *message.SequenceNumber, "enqueued sequence number")
	check(receiver.CompleteMessage(b.ctx, message, nil))
	b.empty(receiver)
}

func sendMany(b *bench) {
	b.send(numbered(60)...)
	receiver := b.receiver()
	found := b.exactly(receiver, 60)
	for _, message := range found {
		check(receiver.CompleteMessage(b.ctx, message, nil))
	}
	same(ids(found), idsUpTo(60), "received")
	b.empty(receiver)
}

func sendBatch(b *bench) {
	sender := must(b.client.NewSender(b.queue, nil))
	batch := must(sender.NewMessageBatch(b.ctx, nil))
	for _, message := range numbered(100) {
		check(batch.AddMessage(message, nil))
	}
	check(sender.SendMessageBatch(b.ctx, batch, nil))
	found := b.exactly(b.deletingReceiver(), 100)
	same(ids(found), idsUpTo(100), "received")
	for _, message := range found {
		equal(strings.HasPrefix(string(message.Body), "message "), true, "body")
	}
}

func receiveAndDelete(b *bench) {
	b.send(numbered(10)...)
	receiver := b.deletingReceiver()
	same(ids(b.exactly(receiver, 10)), idsUpTo(10), "received")
	check(receiver.Close(b.ctx))
	b.empty(b.receiver())
}

func complete(b *bench) {
	b.send(numbered(5)...)
	receiver := b.receiver()
	for _, message := range b.exactly(receiver, 5) {
		check(receiver.CompleteMessage(b.ctx, message, nil))
	}
	check(receiver.Close(b.ctx))
	other := b.receiver()
	b.empty(other)
	equal(len(must(other.PeekMessages(b.ctx, 10, nil))), 0, "peeked")
}

func abandon(b *bench) {
	b.send(text("again", "m"))
	receiver := b.receiver()
	for attempt := range uint32(3) {
		message := b.one(receiver)
		equal(message.DeliveryCount, attempt+1, "delivery count")
		check(receiver.AbandonMessage(b.ctx, message, nil))
	}
	message := b.one(receiver)
	equal(message.DeliveryCount, 4, "delivery count")
	check(receiver.CompleteMessage(b.ctx, message, nil))
}

var changes = map[string]any{"replaced": "new", "added": int64(5)}

// changed sends a message, settles it with changed properties, and looks at it again.
func changed(b *bench, settle func(*azservicebus.Receiver, *azservicebus.ReceivedMessage) error, again func(*azservicebus.Receiver, int64) *azservicebus.ReceivedMessage) *azservicebus.ReceivedMessage {
	b.send(&azservicebus.Message{Body: []byte("x"), ApplicationProperties: map[string]any{"kept": "yes", "replaced": "old"}})
	receiver := b.receiver()
	message := b.one(receiver)
	check(settle(receiver, message))
	next := again(receiver, *message.SequenceNumber)
	equal(next.ApplicationProperties["kept"], any("yes"), "what was not changed")
	equal(next.ApplicationProperties["replaced"], any("new"), "what was replaced")
	equal(next.ApplicationProperties["added"], any(int64(5)), "what was added")
	equal(string(next.Body), "x", "body")
	return next
}

func abandonWithProperties(b *bench) {
	settle := func(receiver *azservicebus.Receiver, message *azservicebus.ReceivedMessage) error {
		return receiver.AbandonMessage(b.ctx, message, &azservicebus.AbandonMessageOptions{PropertiesToModify: changes})
	}
	next := changed(b, settle, func(receiver *azservicebus.Receiver, _ int64) *azservicebus.ReceivedMessage { return b.one(receiver) })
	equal(next.DeliveryCount, 2, "delivery count")
}

func deferWithProperties(b *bench) {
	settle := func(receiver *azservicebus.Receiver, message *azservicebus.ReceivedMessage) error {
		return receiver.DeferMessage(b.ctx, message, &azservicebus.DeferMessageOptions{PropertiesToModify: changes})
	}
	changed(b, settle, func(receiver *azservicebus.Receiver, number int64) *azservicebus.ReceivedMessage {
		return must(receiver.ReceiveDeferredMessages(b.ctx, []int64{number}, nil))[0]
	})
}

func deadLetterWithProperties(b *bench) {
	settle := func(receiver *azservicebus.Receiver, message *azservicebus.ReceivedMessage) error {
		return receiver.DeadLetterMessage(b.ctx, message, &azservicebus.DeadLetterOptions{Reason: to("r"), ErrorDescription: to("d"), PropertiesToModify: changes})
	}
	dead := changed(b, settle, func(*azservicebus.Receiver, int64) *azservicebus.ReceivedMessage { return b.one(b.deadLetters()) })
	equal(*dead.DeadLetterReason, "r", "reason")
}

func deferAndFetch(b *bench) {
	for _, body := range []string{"later", "later still"} {
		b.send(&azservicebus.Message{Body: []byte(body), PartitionKey: to("k")})
	}
	receiver := b.receiver()
	var numbers []int64
	for _, message := range b.exactly(receiver, 2) {
		check(receiver.DeferMessage(b.ctx, message, nil))
		numbers = append(numbers, *message.SequenceNumber)
	}
	b.empty(receiver)
	fetched := must(receiver.ReceiveDeferredMessages(b.ctx, numbers, nil))
	equal(len(fetched), 2, "fetched")
	equal(string(fetched[0].Body)+", "+string(fetched[1].Body), "later, later still", "bodies")
	for _, message := range fetched {
		check(receiver.CompleteMessage(b.ctx, message, nil))
	}
	equal(len(must(b.receiver().PeekMessages(b.ctx, 10, nil))), 0, "peeked")
}

func scheduleAndCancel(b *bench) {
	sender := must(b.client.NewSender(b.queue, nil))
	soon, late := time.Now().Add(3*time.Second), time.Now().Add(time.Hour)
	numbers := must(sender.ScheduleMessages(b.ctx, numbered(3), soon, nil))
	equal(len(numbers), 3, "sequence numbers")
	later := must(sender.ScheduleMessages(b.ctx, []*azservicebus.Message{text("late", "late"), text("later", "later")}, late, nil))
	check(sender.CancelScheduledMessages(b.ctx, later, nil))
	receiver := b.receiver()
	due := b.exactly(receiver, 3)
	same(ids(due), idsUpTo(3), "due")
	for _, message := range due {
		equal(message.EnqueuedTime.Before(*message.ScheduledEnqueueTime), false, "enqueued before its time")
		check(receiver.CompleteMessage(b.ctx, message, nil))
	}
	equal(len(must(b.receiver().PeekMessages(b.ctx, 10, nil))), 0, "peeked")
}

func deadLetter(b *bench) {
	b.send(text("spoilt", "m"))
	receiver := b.receiver()
	options := &azservicebus.DeadLetterOptions{Reason: to("no good"), ErrorDescription: to("it cannot be read")}
	check(receiver.DeadLetterMessage(b.ctx, b.one(receiver), options))
	b.empty(receiver)
	letters := b.deadLetters()
	dead := b.one(letters)
	equal(string(dead.Body), "spoilt", "body")
	equal(*dead.DeadLetterReason, "no good", "reason")
	equal(*dead.DeadLetterErrorDescription, "it cannot be read", "description")
	check(letters.CompleteMessage(b.ctx, dead, nil))
	b.empty(letters)
}

func peekPages(b *bench) {
	b.send(numbered(30)...)
	receiver := b.receiver()
	var seen []*azservicebus.ReceivedMessage
	for {
		page := must(receiver.PeekMessages(b.ctx, 7, nil))
		if len(page) == 0 {
			break
		}
		seen = append(seen, page...)
		if len(page) > 7 || len(seen) > 30 {
			fail("paging shows a message twice: %v", ids(seen))
		}
	}
	same(ids(seen), idsUpTo(30), "peeked")
	same(ids(b.exactly(receiver, 30)), idsUpTo(30), "received afterwards")
}

func sessions(b *bench) {
	for _, body := range []string{"a1", "b1", "a2", "a3"} {
		b.send(&azservicebus.Message{Body: []byte(body), SessionID: to(body[:1])})
	}
	receiver := must(b.client.AcceptSessionForQueue(b.ctx, b.queue, "a", nil))
	equal(receiver.SessionID(), "a", "session")
	before := receiver.LockedUntil()
	equal(before.After(time.Now()), true, "locked")
	_, err := b.client.AcceptSessionForQueue(b.ctx, b.queue, "a", nil)
	equal(err != nil && strings.Contains(err.Error(), "session-cannot-be-locked"), true, fmt.Sprintf("a held session: %v", err))
	next := func(body string) *azservicebus.ReceivedMessage {
		message := must(receiver.ReceiveMessages(b.ctx, 1, nil))[0]
		equal(string(message.Body), body, "in order")
		return message
	}
	check(receiver.AbandonMessage(b.ctx, next("a1"), nil))
	check(receiver.CompleteMessage(b.ctx, next("a1"), nil))
	second := next("a2")
	check(receiver.DeferMessage(b.ctx, second, nil))
	deferred := must(receiver.ReceiveDeferredMessages(b.ctx, []int64{*second.SequenceNumber}, nil))[0]
	equal(string(deferred.Body)+" of "+*deferred.SessionID, "a2 of a", "deferred")
	check(receiver.CompleteMessage(b.ctx, deferred, nil))
	next("a3")
	equal(len(must(receiver.PeekMessages(b.ctx, 10, nil))), 2, "peeked, of all sessions: it names none")
	check(receiver.RenewSessionLock(b.ctx, nil))
	equal(receiver.LockedUntil().After(before), true, "renewed")
	check(receiver.SetSessionState(b.ctx, []byte("seen"), nil))
	equal(string(must(receiver.GetSessionState(b.ctx, nil))), "seen", "state")
	check(receiver.SetSessionState(b.ctx, nil, nil))
	equal(must(receiver.GetSessionState(b.ctx, nil)) == nil, true, "the state is cleared")
	check(receiver.Close(b.ctx))
	left := map[string]string{}
	for range 2 {
		one := must(b.client.AcceptNextSessionForQueue(b.ctx, b.queue, nil))
		left[one.SessionID()] = string(must(one.ReceiveMessages(b.ctx, 1, nil))[0].Body)
	}
	equal(left["a"]+" "+left["b"], "a3 b1", "next sessions")
}

func renewLock(b *bench) {
	lock := time.Duration(must(strconv.Atoi(os.Getenv("PARTIBUS_LOCK_SHORT_S")))) * time.Second
	b.send(text("slow work", "m"))
	receiver := b.receiver()
	message := b.one(receiver)
	first := *message.LockedUntil
	time.Sleep(lock * 7 / 10)
	check(receiver.RenewMessageLock(b.ctx, message, nil))
	equal(message.LockedUntil.Sub(first) >= lock*6/10, true, "renewed")
	time.Sleep(lock / 2)
	check(receiver.CompleteMessage(b.ctx, message, nil))
	b.empty(receiver)
}

func maxDeliveryCount(b *bench) {
	b.send(text("poison", "m"))
	receiver := b.receiver()
	for attempt := range uint32(2) {
		message := b.one(receiver)
		equal(message.DeliveryCount, attempt+1, "delivery count")
		check(receiver.AbandonMessage(b.ctx, message, nil))
	}
	b.empty(receiver)
	equal(*b.one(b.deadLetters()).DeadLetterReason, "MaxDeliveryCountExceeded", "reason")
}

func timeToLive(b *bench) {
	b.send(&azservicebus.Message{Body: []byte("brief"), TimeToLive: to(time.Second)})
	time.Sleep(1200 * time.Millisecond)
	b.empty(b.receiver())
	equal(*b.one(b.deadLetters()).DeadLetterReason, "TTLExpiredException", "reason")
}

func largeMessage(b *bench) {
	sizes := []int{1, 65_535, 262_144, 900_000}
	for _, size := range sizes {
		b.send(&azservicebus.Message{Body: bytes.Repeat([]byte{byte(size % 251)}, size), MessageID: to(strconv.Itoa(size))})
	}
	for _, message := range b.exactly(b.deletingReceiver(), len(sizes)) {
		size := must(strconv.Atoi(message.MessageID))
		equal(bytes.Equal(message.Body, bytes.Repeat([]byte{byte(size % 251)}, size)), true, message.MessageID)
	}
}

func messageTooLarge(b *bench) {
	sender := must(b.client.NewSender(b.queue, nil))
	err := sender.SendMessage(b.ctx, &azservicebus.Message{Body: make([]byte, 2_000_000)}, nil)
	if !errors.Is(err, azservicebus.ErrMessageTooLarge) {
		fail("%v, expected ErrMessageTooLarge", err)
	}
	b.send(text("small", "m"))
	b.one(b.receiver())
}

func unknownQueue(b *bench) {
	err := must(b.client.NewSender(b.queue, nil)).SendMessage(b.ctx, text("x", "m"), nil)
	expectNotFound(err)
	_, err = b.receiver().ReceiveMessages(b.ctx, 1, nil)
	expectNotFound(err)
}

func wrongKey(b *bench) {
	err := must(b.client.NewSender(b.queue, nil)).SendMessage(b.ctx, text("x", "m"), nil)
	expectCode(err, azservicebus.CodeUnauthorizedAccess)
}

// expectNotFound: the client passes on the error of a refused link as it is.
func expectNotFound(err error) {
	if err == nil || !strings.Contains(err.Error(), "amqp:not-found") || !strings.Contains(err.Error(), "could not be found") {
		fail("%v, expected amqp:not-found", err)
	}
}

func expectCode(err error, code azservicebus.Code) {
	var found *azservicebus.Error
	if !errors.As(err, &found) || found.Code != code {
		fail("%v, expected the code %s", err, code)
	}
}
