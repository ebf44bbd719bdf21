"""Inference as a service for owners of data who are not parties.

A client sends shares of its images to N parties, and adds the shares of the results that they return. Each party queues
requests, runs those that party 0 chooses as batches of its private net, and answers with shares that reveal nothing but
their sum.

    client, party_group, message, description
                                    a client; it imports neither CrypTen nor a party's modules
    serve, party                    a party, in one session or in one after another; the methods that clients call
    models                          the nets of a service, and the file from which they come and go
    dispatcher, request_queue       the requests at a party
    scheduler, control              party 0's choice of batches, and the parties' messages about it
    worker                          batches on shares
    lane_server                     the connection between lane 0 of a party and its other lanes
    plan, figures                   the description of a service from its net, private lookups; figures for Prometheus
"""
