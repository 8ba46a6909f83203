"""Files of published weights over the network, in chunks, from the trainer's machine and from engines that have them already."""
