package main

import (
	"encoding/json"
	"errors"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// administration gives the client that all these scenarios use. SSL_CERT_FILE names the broker's authority.
func administration() *admin.Client {
	return must(admin.NewClientFromConnectionString(os.Getenv("PARTIBUS_ADMIN_CONNECTION_STRING"), nil))
}

// alike compares all properties of two descriptions, which are full of pointers.
func alike(seen, expected any, what string) {
	equal(string(must(json.Marshal(seen))), string(must(json.Marshal(expected))), what)
}

// status expects an answer with this status.
func status(err error, expected int, what string) {
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) || answer.StatusCode != expected {
		fail("%s: %v, expected status %d", what, err, expected)
	}
}

// ends expects the address of an entity, and replaces it by the entity's name.
func ends(address **string, name string) {
	if *address == nil || !strings.HasSuffix(**address, "/"+name) {
		fail("forwards to %v, expected %s", *address, name)
	}
	*address = &name
}

var manager = []admin.AuthorizationRule{{
	AccessRights: []admin.AccessRight{admin.AccessRightManage, admin.AccessRightSend, admin.AccessRightListen},
	KeyName:      to("manager"),
	PrimaryKey:   to("cHJpbWFyeXByaW1hcnlwcmltYXJ5cHJpbWFyeXByaW0="),
	SecondaryKey: to("c2Vjb25kYXJ5c2Vjb25kYXJ5c2Vjb25kYXJ5c2Vjb24="),
}}

// undated expects the rules to have times, and leaves these out.
func undated(rules []admin.AuthorizationRule) []admin.AuthorizationRule {
	for number := range rules {
		if rules[number].CreatedTime == nil || rules[number].ModifiedTime == nil {
			fail("an authorization rule has no times")
		}
		rules[number].CreatedTime, rules[number].ModifiedTime = nil, nil
	}
	return rules
}

// queueAdministration creates, changes, lists and deletes a queue with every property, and meets the errors.
func queueAdministration(b *bench) {
	client, queue, target := administration(), b.queue, b.queue+"-target"
	must(client.CreateQueue(b.ctx, target, nil))
	wanted := admin.QueueProperties{
		AuthorizationRules:                  manager,
		AutoDeleteOnIdle:                    to("PT10M"),
		DeadLetteringOnMessageExpiration:    to(true),
		DefaultMessageTimeToLive:            to("P2D"),
		DuplicateDetectionHistoryTimeWindow: to("PT3M"),
		EnableBatchedOperations:             to(false),
		EnablePartitioning:                  to(false),
		ForwardDeadLetteredMessagesTo:       to(target),
		LockDuration:                        to("PT30S"),
		MaxDeliveryCount:                    to(int32(5)),
		MaxMessageSizeInKilobytes:           to(int64(2048)),
		MaxSizeInMegabytes:                  to(int32(2048)),
		RequiresDuplicateDetection:          to(true),
		RequiresSession:                     to(true),
		Status:                              to(admin.EntityStatusSendDisabled),
		UserMetadata:                        to("before"),
	}
	must(client.CreateQueue(b.ctx, queue, &admin.CreateQueueOptions{Properties: &wanted}))
	found := must(client.GetQueue(b.ctx, queue, nil)).QueueProperties
	seen := found
	ends(&seen.ForwardDeadLetteredMessagesTo, target)
	seen.AuthorizationRules = undated(seen.AuthorizationRules)
	alike(seen, wanted, "created")

	found.AutoDeleteOnIdle, wanted.AutoDeleteOnIdle = to("PT20M"), to("PT20M")
	found.DeadLetteringOnMessageExpiration, wanted.DeadLetteringOnMessageExpiration = to(false), to(false)
	found.DefaultMessageTimeToLive, wanted.DefaultMessageTimeToLive = to("P3D"), to("P3D")
	found.DuplicateDetectionHistoryTimeWindow, wanted.DuplicateDetectionHistoryTimeWindow = to("PT4M"), to("PT4M")
	found.EnableBatchedOperations, wanted.EnableBatchedOperations = to(true), to(true)
	found.LockDuration, wanted.LockDuration = to("PT40S"), to("PT40S")
	found.MaxDeliveryCount, wanted.MaxDeliveryCount = to(int32(6)), to(int32(6))
	found.MaxMessageSizeInKilobytes, wanted.MaxMessageSizeInKilobytes = to(int64(4096)), to(int64(4096))
	found.MaxSizeInMegabytes, wanted.MaxSizeInMegabytes = to(int32(3072)), to(int32(3072))
	found.Status, wanted.Status = to(admin.EntityStatusActive), to(admin.EntityStatusActive)
	found.UserMetadata, wanted.UserMetadata = to("after"), to("after")
	must(client.UpdateQueue(b.ctx, queue, found, nil))
	seen = must(client.GetQueue(b.ctx, queue, nil)).QueueProperties
	ends(&seen.ForwardDeadLetteredMessagesTo, target)
	seen.AuthorizationRules = undated(seen.AuthorizationRules)
	alike(seen, wanted, "updated")

	equal(must(client.GetQueueRuntimeProperties(b.ctx, queue, nil)).TotalMessageCount, 0, "messages")
	listed := 0
	for pager := client.NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: 3}); pager.More(); {
		for _, each := range must(pager.NextPage(b.ctx)).Queues {
			if each.QueueName == queue {
				listed++
				equal(*each.MaxDeliveryCount, 6, "deliveries in the list")
			}
		}
	}
	for pager := client.NewListQueuesRuntimePropertiesPager(nil); pager.More(); {
		for _, each := range must(pager.NextPage(b.ctx)).QueueRuntimeProperties {
			if each.QueueName == queue {
				listed++
				equal(each.TotalMessageCount, 0, "messages in the list")
			}
		}
	}
	equal(listed, 2, "listed")
	namespace := must(client.GetNamespaceProperties(b.ctx, nil))
	equal(namespace.Name, "sbemulatorns", "namespace")
	equal(namespace.SKU, "Premium", "tier")

	_, err := client.CreateQueue(b.ctx, queue, nil)
	status(err, 409, "a queue of this name")
	_, err = client.CreateQueue(b.ctx, queue+"-long", &admin.CreateQueueOptions{Properties: &admin.QueueProperties{LockDuration: to("PT9M")}})
	status(err, 400, "a long lock")
	found.RequiresSession = to(false)
	_, err = client.UpdateQueue(b.ctx, queue, found, nil)
	status(err, 400, "a property that cannot change")
	_, err = client.UpdateQueue(b.ctx, queue+"-none", admin.QueueProperties{}, nil)
	status(err, 404, "a queue that is not there")
	must(client.DeleteQueue(b.ctx, queue, nil))
	if found := must(client.GetQueue(b.ctx, queue, nil)); found != nil {
		fail("%v, expected no queue", found)
	}
	if found := must(client.GetQueueRuntimeProperties(b.ctx, queue, nil)); found != nil {
		fail("%v, expected no queue", found)
	}
	_, err = client.DeleteQueue(b.ctx, queue, nil)
	status(err, 404, "a queue that is gone")
	must(client.DeleteQueue(b.ctx, target, nil))
	wrong := must(admin.NewClientFromConnectionString(os.Getenv("PARTIBUS_ADMIN_CONNECTION_STRING")+"x", nil))
	_, err = wrong.GetQueue(b.ctx, b.queue, nil)
	status(err, 401, "a wrong key")
}
