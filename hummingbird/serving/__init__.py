"""Inference for owners of data who are not parties.

A client (`client`, `message`, `description`) sends shares of its images to N parties and adds up shares of the results;
it loads neither CrypTen nor the parts of a party. A party (`party`, `serve`) keeps the requests of clients
(`dispatcher`, `request_queue`), runs those that party 0 chooses (`scheduler`, `control`) as batches of its private net,
and answers with shares that say nothing but their sum (`worker`). Its other lanes ask the dispatcher of lane 0
(`lane_server`). When a session is lost, the party begins another one (`reconnect`).
"""
