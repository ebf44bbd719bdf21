"""Inference for owners of data who are not parties.

A client (`client`, `message`, `description`) sends shares of its images to N parties and adds up shares of the results;
it loads neither CrypTen nor the parts of a party. A party (`party`, `serve`) keeps what clients sent (`desk`, `inbox`),
runs what party 0 orders (`order`, `control`) as batches of its private net (`worker`, `batches`), and answers with
shares that say nothing but their sum (`zeros`). Its other lanes come to the desk with questions (`lobby`, `link`).
"""
